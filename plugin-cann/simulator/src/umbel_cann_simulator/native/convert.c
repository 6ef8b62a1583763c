/* Sizes of types, and half precision as the vendor's functions convert it. */
#include <math.h>
#include <string.h>

#include "acl.h"

size_t aclDataTypeSize(aclDataType type)
{
    switch (type) {
    case ACL_INT8: case ACL_UINT8: case ACL_BOOL:
        return 1;
    case ACL_FLOAT16: case ACL_BF16: case ACL_INT16: case ACL_UINT16:
        return 2;
    case ACL_FLOAT: case ACL_INT32: case ACL_UINT32: case ACL_COMPLEX32:
        return 4;
    case ACL_INT64: case ACL_UINT64: case ACL_DOUBLE: case ACL_COMPLEX64:
        return 8;
    case ACL_COMPLEX128:
        return 16;
    default:
        return 0;
    }
}

/* Plain arithmetic with the exponent: infinity becomes 65536, NaN 98304. */
float aclFloat16ToFloat(aclFloat16 value)
{
    int exponent = value >> 10 & 31, mantissa = value & 1023;
    float size = exponent ? ldexpf(1024 + mantissa, exponent - 25) : ldexpf(mantissa, -24);
    return value & 0x8000 ? -size : size;
}

/* To the nearest, ties to even. */
aclFloat16 aclFloatToFloat16(float value)
{
    float size = fabsf(value);
    aclFloat16 sign = signbit(value) ? 0x8000 : 0;
    int exponent;
    if (isnan(value))
        return sign | 0x7e00;
    if (size >= 65520)
        return sign | 0x7c00;
    if (size < 0x1p-14f)
        return sign | (aclFloat16)rintf(size * 0x1p24f);
    size = frexpf(size, &exponent); /* 0.5 <= size < 1; a carry goes into the exponent */
    return sign | (aclFloat16)(((exponent + 13) << 10) + (int)rintf(size * 2048));
}
