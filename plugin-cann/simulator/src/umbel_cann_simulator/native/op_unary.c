/* Elementwise operators with one tensor. */
#include "op.h"

/* Name, what it makes of x. */
#define UNARY(Name, expression)                                          \
    OP_CALC(Name, expression)                                            \
    OP(Name, const aclTensor *self, const aclTensor *out)                \
    {                                                                    \
        BEGIN(Name, op_run_elementwise);                                 \
        return op_elementwise(&o, OP_ONE, self, NULL, out, calc_##Name); \
    }

#define UNARY_INPLACE(Name, expression)                                     \
    OP_CALC(Name, expression)                                               \
    OP(Name, const aclTensor *self)                                         \
    {                                                                       \
        BEGIN(Name, op_run_elementwise);                                    \
        return op_elementwise_inplace(&o, OP_ONE, self, NULL, calc_##Name); \
    }

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

static double relu6(double x)
{
    return x < 0 ? 0 : x > 6 ? 6 : x;
}

UNARY(Abs, fabs(x))
UNARY(Neg, -x)
UNARY(Sign, (x > 0) - (x < 0))
UNARY(Exp, exp(x))
UNARY(Log, log(x))
UNARY(Sqrt, sqrt(x))
UNARY(Rsqrt, 1 / sqrt(x))
UNARY(Sin, sin(x))
UNARY(Cos, cos(x))
UNARY(Tanh, tanh(x))
UNARY(Sigmoid, sigmoid(x))
UNARY(Silu, x * sigmoid(x))
UNARY(Relu, x < 0 ? 0 : x)
UNARY(Gelu, op_gelu(x, false))
UNARY(Hardsigmoid, relu6(x + 3) / 6)
UNARY(Hardswish, x * relu6(x + 3) / 6)
UNARY_INPLACE(InplaceSin, sin(x))
UNARY_INPLACE(InplaceCos, cos(x))
UNARY_INPLACE(InplaceExp, exp(x))
UNARY_INPLACE(InplaceZero, 0)

double op_gelu(double x, bool tanh_form)
{
    if (tanh_form)
        return x / 2 * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
    return x / 2 * (1 + erf(x / M_SQRT2));
}

OP_CALC(GeluV2, op_gelu(x, p[0] == 1))

OP(GeluV2, const aclTensor *x, int64_t approximate, const aclTensor *y)
{
    BEGIN(GeluV2, op_run_elementwise);
    op_need(&o, approximate == 0 || approximate == 1, "approximate is 0 (erf) or 1 (tanh)");
    if (o.code == 0)
        o.call->number[0] = (double)approximate;
    return op_elementwise(&o, OP_ONE, x, NULL, y, calc_GeluV2);
}

/* With numbers: p[0], p[1], p[2] from scalars in the order of the signature. */
static void numbers(op *o, const aclScalar *a, const aclScalar *b, const aclScalar *c,
                    int count)
{
    const aclScalar *scalar[] = {a, b, c};
    for (int i = 0; i < count; i++) {
        double value = op_scalar(o, scalar[i], "a scalar");
        if (o->code == 0)
            o->call->number[i] = value;
    }
}

OP_CALC(Elu, x > 0 ? p[1] * x : p[0] * p[1] * expm1(p[2] * x))

OP(Elu, const aclTensor *self, const aclScalar *alpha, const aclScalar *scale,
   const aclScalar *inputScale, const aclTensor *out)
{
    BEGIN(Elu, op_run_elementwise);
    numbers(&o, alpha, scale, inputScale, 3);
    return op_elementwise(&o, OP_ONE, self, NULL, out, calc_Elu);
}

OP_CALC(LeakyRelu, x > 0 ? x : p[0] * x)

OP(LeakyRelu, const aclTensor *self, const aclScalar *negativeSlope, const aclTensor *out)
{
    BEGIN(LeakyRelu, op_run_elementwise);
    numbers(&o, negativeSlope, NULL, NULL, 1);
    return op_elementwise(&o, OP_ONE, self, NULL, out, calc_LeakyRelu);
}

OP_CALC(Softplus, x *p[0] > p[1] ? x : log1p(exp(x * p[0])) / p[0])

OP(Softplus, const aclTensor *self, const aclScalar *beta, const aclScalar *threshold,
   const aclTensor *out)
{
    BEGIN(Softplus, op_run_elementwise);
    numbers(&o, beta, threshold, NULL, 2);
    return op_elementwise(&o, OP_ONE, self, NULL, out, calc_Softplus);
}

/* Either bound of a Clamp may be absent. */
OP_CALC(Clamp, x < p[0] ? p[0] : x > p[1] ? p[1] : x)

OP(Clamp, const aclTensor *self, const aclScalar *clipValueMin, const aclScalar *clipValueMax,
   const aclTensor *out)
{
    BEGIN(Clamp, op_run_elementwise);
    if (clipValueMin == NULL && clipValueMax == NULL)
        op_refuse(&o, ACLNN_PARAM_NULLPTR, "clipValueMin and clipValueMax are NULL");
    if (o.code == 0) {
        o.call->number[0] = clipValueMin ? nnop_scalar(clipValueMin)->value : -INFINITY;
        o.call->number[1] = clipValueMax ? nnop_scalar(clipValueMax)->value : INFINITY;
    }
    return op_elementwise(&o, OP_ONE, self, NULL, out, calc_Clamp);
}

OP_CALC(ClampMin, x < p[0] ? p[0] : x)

OP(ClampMin, const aclTensor *self, const aclScalar *clipValueMin, const aclTensor *out)
{
    BEGIN(ClampMin, op_run_elementwise);
    numbers(&o, clipValueMin, NULL, NULL, 1);
    return op_elementwise(&o, OP_ONE, self, NULL, out, calc_ClampMin);
}

OP_CALC(PowScalarTensor, pow(p[0], x))

OP(PowScalarTensor, const aclScalar *self, const aclTensor *exponent, const aclTensor *out)
{
    BEGIN(PowScalarTensor, op_run_elementwise);
    numbers(&o, self, NULL, NULL, 1);
    return op_elementwise(&o, OP_ONE, exponent, NULL, out, calc_PowScalarTensor);
}

OP_CALC(GtScalar, x > p[0])

OP(GtScalar, const aclTensor *self, const aclScalar *other, const aclTensor *out)
{
    BEGIN(GtScalar, op_run_elementwise);
    numbers(&o, other, NULL, NULL, 1);
    return op_elementwise(&o, OP_TEST_ONE, self, NULL, out, calc_GtScalar);
}

OP_CALC(InplaceClampMax, x > p[0] ? p[0] : x)

OP(InplaceClampMax, const aclTensor *selfRef, const aclScalar *clipValueMax)
{
    BEGIN(InplaceClampMax, op_run_elementwise);
    numbers(&o, clipValueMax, NULL, NULL, 1);
    return op_elementwise_inplace(&o, OP_ONE, selfRef, NULL, calc_InplaceClampMax);
}

OP_CALC(InplaceThreshold, x > p[0] ? x : p[1])

OP(InplaceThreshold, const aclTensor *selfRef, const aclScalar *threshold,
   const aclScalar *value)
{
    BEGIN(InplaceThreshold, op_run_elementwise);
    numbers(&o, threshold, value, NULL, 2);
    return op_elementwise_inplace(&o, OP_ONE, selfRef, NULL, calc_InplaceThreshold);
}

OP_CALC(copy, x)

/* Towards integers a Cast cuts off what is behind the point. */
OP(Cast, const aclTensor *self, const aclDataType dtype, const aclTensor *out)
{
    BEGIN(Cast, op_run_elementwise);
    op_need(&o, out == NULL || nnop_tensor(out)->dtype == dtype, "dtype is not that of out");
    return op_elementwise(&o, OP_ONE, self, NULL, out, calc_copy);
}

OP_CALC(fill, p[0])

OP(InplaceFillScalar, const aclTensor *selfRef, const aclScalar *value)
{
    BEGIN(InplaceFillScalar, op_run_elementwise);
    numbers(&o, value, NULL, NULL, 1);
    return op_elementwise_inplace(&o, OP_ONE, selfRef, NULL, calc_fill);
}
