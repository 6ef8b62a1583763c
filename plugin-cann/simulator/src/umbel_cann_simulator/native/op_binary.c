/* Elementwise operators with two tensors, or with a tensor and a scalar. */
#include "op.h"

#define BINARY(Name, expression)                                                  \
    OP_CALC(Name, expression)                                                     \
    OP(Name, const aclTensor *self, const aclTensor *other, const aclTensor *out) \
    {                                                                             \
        BEGIN(Name, op_run_elementwise);                                          \
        return op_elementwise(&o, OP_TWO, self, other, out, calc_##Name);         \
    }

#define BINARY_INPLACE(Name, expression)                                        \
    OP_CALC(Name, expression)                                                   \
    OP(Name, const aclTensor *selfRef, const aclTensor *other)                  \
    {                                                                           \
        BEGIN(Name, op_run_elementwise);                                        \
        return op_elementwise_inplace(&o, OP_TWO, selfRef, other, calc_##Name); \
    }

/* p[0]: alpha */
#define SUM(Name, expression)                                                       \
    OP_CALC(Name, expression)                                                       \
    OP(Name, const aclTensor *self, const aclTensor *other, const aclScalar *alpha, \
       const aclTensor *out)                                                        \
    {                                                                               \
        BEGIN(Name, op_run_elementwise);                                            \
        number(&o, 0, alpha, "alpha");                                              \
        return op_elementwise(&o, OP_TWO, self, other, out, calc_##Name);           \
    }

#define SUM_INPLACE(Name, expression)                                                  \
    OP_CALC(Name, expression)                                                          \
    OP(Name, const aclTensor *selfRef, const aclTensor *other, const aclScalar *alpha) \
    {                                                                                  \
        BEGIN(Name, op_run_elementwise);                                               \
        number(&o, 0, alpha, "alpha");                                                 \
        return op_elementwise_inplace(&o, OP_TWO, selfRef, other, calc_##Name);        \
    }

/* p[0]: other; p[1]: alpha */
#define SUM_SCALAR(Name, expression)                                                \
    OP_CALC(Name, expression)                                                       \
    OP(Name, const aclTensor *self, const aclScalar *other, const aclScalar *alpha, \
       const aclTensor *out)                                                        \
    {                                                                               \
        BEGIN(Name, op_run_elementwise);                                            \
        number(&o, 0, other, "other");                                              \
        number(&o, 1, alpha, "alpha");                                              \
        return op_elementwise(&o, OP_ONE, self, NULL, out, calc_##Name);            \
    }

#define SUM_SCALAR_INPLACE(Name, expression)                                           \
    OP_CALC(Name, expression)                                                          \
    OP(Name, const aclTensor *selfRef, const aclScalar *other, const aclScalar *alpha) \
    {                                                                                  \
        BEGIN(Name, op_run_elementwise);                                               \
        number(&o, 0, other, "other");                                                 \
        number(&o, 1, alpha, "alpha");                                                 \
        return op_elementwise_inplace(&o, OP_ONE, selfRef, NULL, calc_##Name);         \
    }

#define SCALAR(Name, expression)                                                  \
    OP_CALC(Name, expression)                                                     \
    OP(Name, const aclTensor *self, const aclScalar *other, const aclTensor *out) \
    {                                                                             \
        BEGIN(Name, op_run_elementwise);                                          \
        number(&o, 0, other, "other");                                            \
        return op_elementwise(&o, OP_ONE, self, NULL, out, calc_##Name);          \
    }

#define SCALAR_INPLACE(Name, expression)                                       \
    OP_CALC(Name, expression)                                                  \
    OP(Name, const aclTensor *selfRef, const aclScalar *other)                 \
    {                                                                          \
        BEGIN(Name, op_run_elementwise);                                       \
        number(&o, 0, other, "other");                                         \
        return op_elementwise_inplace(&o, OP_ONE, selfRef, NULL, calc_##Name); \
    }

static void number(op *o, int at, const aclScalar *scalar, const char *role)
{
    double value = op_scalar(o, scalar, role);
    if (o->code == 0)
        o->call->number[at] = value;
}

SUM(Add, x + p[0] * y)
SUM(Sub, x - p[0] * y)
BINARY(Mul, x *y)
BINARY(Div, x / y)
BINARY(Maximum, isnan(x) || x > y ? x : y)
BINARY(Minimum, isnan(x) || x < y ? x : y)
SUM_INPLACE(InplaceAdd, x + p[0] * y)
SUM_INPLACE(InplaceSub, x - p[0] * y)
BINARY_INPLACE(InplaceMul, x *y)
BINARY_INPLACE(InplaceDiv, x / y)
SUM_SCALAR(Adds, x + p[1] * p[0])
SUM_SCALAR(Subs, x - p[1] * p[0])
SCALAR(Muls, x *p[0])
SCALAR(Divs, x / p[0])
SUM_SCALAR_INPLACE(InplaceAdds, x + p[1] * p[0])
SUM_SCALAR_INPLACE(InplaceSubs, x - p[1] * p[0])
SCALAR_INPLACE(InplaceMuls, x *p[0])
SCALAR_INPLACE(InplaceDivs, x / p[0])
BINARY_INPLACE(InplacePowTensorTensor, pow(x, y))
BINARY_INPLACE(InplaceCopy, y)

OP_CALC(EqTensor, x == y)

OP(EqTensor, const aclTensor *self, const aclTensor *other, const aclTensor *out)
{
    BEGIN(EqTensor, op_run_elementwise);
    return op_elementwise(&o, OP_TEST, self, other, out, calc_EqTensor);
}
