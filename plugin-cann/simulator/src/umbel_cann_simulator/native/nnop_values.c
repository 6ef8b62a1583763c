/* Scalars, arrays and lists: copies of what the caller passed. */
#include <stdlib.h>
#include <string.h>

#include "half.h"
#include "nnop_object.h"

double nnop_number(aclDataType dtype, const void *value)
{
    union {
        float f;
        double d;
        int64_t i64;
        uint64_t u64;
        int32_t i32;
        uint32_t u32;
        int16_t i16;
        uint16_t u16;
        int8_t i8;
        uint8_t u8;
    } as = {0};
    memcpy(&as, value, nnop_size(dtype, 1));
    switch (dtype) {
    case ACL_FLOAT: return as.f;
    case ACL_DOUBLE: return as.d;
    case ACL_FLOAT16: return half_to_float(as.u16);
    case ACL_BF16: return bf16_to_float(as.u16);
    case ACL_INT64: return (double)as.i64;
    case ACL_UINT64: return (double)as.u64;
    case ACL_INT32: return as.i32;
    case ACL_UINT32: return as.u32;
    case ACL_INT16: return as.i16;
    case ACL_UINT16: return as.u16;
    case ACL_INT8: return as.i8;
    default: return as.u8;
    }
}

aclScalar *aclCreateScalar(void *value, aclDataType dtype)
{
    if (value == NULL || nnop_size(dtype, 1) == 0) {
        sim_fail(ACLNN_PARAM_NULLPTR, "aclCreateScalar: no value, or of type %d", dtype);
        return NULL;
    }
    aclScalar *scalar = nnop_new(NNOP_SCALAR, sizeof *scalar);
    if (scalar != NULL) {
        scalar->dtype = dtype;
        scalar->value = nnop_number(dtype, value);
    }
    return scalar;
}

aclnnStatus aclDestroyScalar(const aclScalar *scalar)
{
    if (scalar != NULL)
        nnop_dead(nnop_alive(scalar, NNOP_SCALAR, "aclDestroyScalar"), NNOP_SCALAR);
    return 0;
}

const aclScalar *nnop_scalar(const aclScalar *scalar)
{
    return nnop_alive(scalar, NNOP_SCALAR, "phase 1");
}

const aclIntArray *nnop_ints(const aclIntArray *array)
{
    return nnop_alive(array, NNOP_INTS, "phase 1");
}

const aclTensorList *nnop_tensors(const aclTensorList *list)
{
    return nnop_alive(list, NNOP_TENSORS, "phase 1");
}

/* Values stand behind the object, in the same piece of memory. Argument is the type of what the
   caller passes, Value that of what is kept. */
#define ARRAY(Name, Argument, Value, kind)                                            \
    acl##Name *aclCreate##Name(Argument values, uint64_t count)                       \
    {                                                                                 \
        if (values == NULL && count > 0) {                                            \
            sim_fail(ACLNN_PARAM_NULLPTR, "aclCreate" #Name ": NULL");                \
            return NULL;                                                              \
        }                                                                             \
        acl##Name *array = nnop_new(kind, sizeof *array + count * sizeof(Value));     \
        if (array == NULL)                                                            \
            return NULL;                                                              \
        array->count = count;                                                         \
        array->values = (Value *)(array + 1);                                         \
        if (count > 0)                                                                \
            memcpy(array->values, (const void *)values, count * sizeof(Value));       \
        return array;                                                                 \
    }                                                                                 \
    ACL_API aclnnStatus aclGet##Name##Size(const acl##Name *array, uint64_t *size)    \
    {                                                                                 \
        if (array == NULL || size == NULL)                                            \
            return sim_fail(ACLNN_PARAM_NULLPTR, "aclGet" #Name "Size: NULL");        \
        *size = ((acl##Name *)nnop_alive(array, kind, "aclGet" #Name "Size"))->count; \
        return 0;                                                                     \
    }

#define PLAIN_DESTROY(Name, kind)                                         \
    aclnnStatus aclDestroy##Name(const acl##Name *array)                  \
    {                                                                     \
        if (array != NULL)                                                \
            nnop_dead(nnop_alive(array, kind, "aclDestroy" #Name), kind); \
        return 0;                                                         \
    }

/* A list takes its members along: who also destroys one of them does it twice. */
#define LIST_DESTROY(Name, Member, kind)                               \
    aclnnStatus aclDestroy##Name(const acl##Name *list)                \
    {                                                                  \
        if (list == NULL)                                              \
            return 0;                                                  \
        acl##Name *alive = nnop_alive(list, kind, "aclDestroy" #Name); \
        for (uint64_t i = 0; i < alive->count; i++)                    \
            aclDestroy##Member(alive->values[i]);                      \
        nnop_dead(alive, kind);                                        \
        return 0;                                                      \
    }

ARRAY(IntArray, const int64_t *, int64_t, NNOP_INTS)
ARRAY(FloatArray, const float *, float, NNOP_FLOATS)
ARRAY(BoolArray, const bool *, bool, NNOP_BOOLS)
ARRAY(TensorList, const aclTensor *const *, aclTensor *, NNOP_TENSORS)
ARRAY(ScalarList, const aclScalar *const *, aclScalar *, NNOP_SCALARS)
PLAIN_DESTROY(IntArray, NNOP_INTS)
PLAIN_DESTROY(FloatArray, NNOP_FLOATS)
PLAIN_DESTROY(BoolArray, NNOP_BOOLS)
LIST_DESTROY(TensorList, Tensor, NNOP_TENSORS)
LIST_DESTROY(ScalarList, Scalar, NNOP_SCALARS)
