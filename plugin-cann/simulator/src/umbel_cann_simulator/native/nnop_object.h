/* Objects handed out as pointers: told apart, counted, and known when they come back dead. */
#ifndef NNOP_OBJECT_H
#define NNOP_OBJECT_H

#include "nnop.h"

typedef enum {
    NNOP_TENSOR = 0x4e4e5401,
    NNOP_SCALAR = 0x4e4e5402,
    NNOP_INTS = 0x4e4e5403,
    NNOP_FLOATS = 0x4e4e5404,
    NNOP_BOOLS = 0x4e4e5405,
    NNOP_TENSORS = 0x4e4e5406,
    NNOP_SCALARS = 0x4e4e5407,
    NNOP_EXECUTOR = 0x4e4e5408,
} nnop_kind;

/* Zeroed memory of at least `size` bytes that begins with its kind; NULL: no memory. */
void *nnop_new(nnop_kind kind, size_t size);

/* `object`, or the end of the process: not of this kind, or destroyed before. */
void *nnop_alive(const void *object, nnop_kind kind, const char *function);

/* Marks it dead. Its memory is kept for a while, so that a later use is seen for what it is. */
void nnop_dead(void *object, nnop_kind kind);

/* Says what was done wrong and aborts: for what would corrupt memory on a real device. */
_Noreturn void nnop_die(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
