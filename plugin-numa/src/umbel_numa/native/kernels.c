/* The table of everything that is compiled for this instruction set. Operations may be those of
 * another, UN_SHARED, where only the products with packed weights differ (setup.py). */
#include "un.h"

#define SHARED(name) UN_JOIN(un_##name, UN_SHARED)
#define DECLARE(name) un_kernel SHARED(name);
UN_OPS(DECLARE)

#define UN_FORMATS(X) \
    X(q4_0) X(q4_1) X(q5_0) X(q5_1) X(q8_0) X(q2_k) X(q3_k) X(q4_k) X(q5_k) X(q6_k) \
    X(iq4_nl) X(iq4_xs) X(mxfp4) X(f16) X(bf16)
#define FORMAT(name) extern const un_format UN_(name);
UN_FORMATS(FORMAT)

#define ADDRESS(name) &UN_(name),
static const un_format *const formats[] = {UN_FORMATS(ADDRESS) NULL};

#define TEXT2(x) #x
#define TEXT(x) TEXT2(x)
#define OP(name) SHARED(name),
const un_kernels UN_(kernels) = {TEXT(UN_VARIANT), {UN_OPS(OP)}, formats};
