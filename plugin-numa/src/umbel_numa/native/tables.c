/* What the kernels of all instruction sets share. */
#include "un.h"

const int8_t *un_tables[64];

/* Hands over the table of a type, which stays where it is as long as the process lives. */
UN_API void un_set_table(int type, const int8_t *table) { un_tables[type] = table; }
