/* aclTensor: a description of values in device memory, which it never owns. */
#include <stdlib.h>
#include <string.h>

#include "nnop_object.h"

size_t nnop_size(aclDataType dtype, int64_t count)
{
    size_t n = (size_t)count;
    switch (dtype) {
    case ACL_INT4: return (n + 1) / 2;
    case ACL_INT8: case ACL_UINT8: case ACL_BOOL: return n;
    case ACL_FLOAT16: case ACL_BF16: case ACL_INT16: case ACL_UINT16: return n * 2;
    case ACL_FLOAT: case ACL_INT32: case ACL_UINT32: return n * 4;
    case ACL_INT64: case ACL_UINT64: case ACL_DOUBLE: return n * 8;
    default: return 0;
    }
}

int64_t nnop_elements(const nnop_view *view)
{
    int64_t count = 1;
    for (int i = 0; i < view->axes; i++)
        count *= view->shape[i];
    return count;
}

int64_t nnop_extent(const nnop_view *view)
{
    int64_t last = 0;
    for (int i = 0; i < view->axes; i++) {
        if (view->shape[i] == 0)
            return 0;
        last += (view->shape[i] - 1) * view->strides[i];
    }
    return last + 1;
}

const nnop_view *nnop_tensor(const aclTensor *tensor)
{
    return &((const aclTensor *)nnop_alive(tensor, NNOP_TENSOR, "phase 1"))->view;
}

static void contiguous(nnop_view *view)
{
    int64_t step = 1;
    for (int i = view->axes - 1; i >= 0; i--) {
        view->strides[i] = step;
        step *= view->shape[i];
    }
}

/* Nonzero: what is described is no tensor. */
static int describe(nnop_view *view, const int64_t *shape, uint64_t axes, aclDataType dtype,
                    const int64_t *strides, int64_t offset, aclFormat format,
                    const int64_t *storage, uint64_t storage_axes, void *data)
{
    if ((shape == NULL && axes > 0) || (storage == NULL && storage_axes > 0))
        return sim_fail(ACLNN_PARAM_NULLPTR,
                        "aclCreateTensor: dims are NULL, their number is not 0");
    if (axes > NNOP_AXES || storage_axes > NNOP_AXES)
        return sim_fail(ACLNN_PARAM_INVALID, "aclCreateTensor: more than %d dims", NNOP_AXES);
    *view = (nnop_view){.dtype = dtype, .format = format, .offset = offset, .data = data};
    view->axes = (int)axes;
    view->storage_axes = (int)storage_axes;
    for (uint64_t i = 0; i < axes; i++) {
        if (shape[i] < 0 || (strides != NULL && strides[i] < 0))
            return sim_fail(ACLNN_PARAM_INVALID, "aclCreateTensor: a dim or stride below 0");
        view->shape[i] = shape[i];
    }
    if (storage_axes > 0)
        memcpy(view->storage, storage, storage_axes * sizeof *storage);
    if (strides == NULL)
        contiguous(view);
    else if (axes > 0)
        memcpy(view->strides, strides, axes * sizeof *strides);
    return 0;
}

aclTensor *aclCreateTensor(const int64_t *shape, uint64_t axes, aclDataType dtype,
                           const int64_t *strides, int64_t offset, aclFormat format,
                           const int64_t *storage, uint64_t storage_axes, void *data)
{
    nnop_view view;
    if (describe(&view, shape, axes, dtype, strides, offset, format, storage, storage_axes,
                 data))
        return NULL;
    aclTensor *tensor = nnop_new(NNOP_TENSOR, sizeof *tensor);
    if (tensor != NULL)
        tensor->view = view;
    return tensor;
}

aclnnStatus aclInitTensor(aclTensor *tensor, const int64_t *shape, uint64_t axes,
                          aclDataType dtype, const int64_t *strides, int64_t offset,
                          aclFormat format, const int64_t *storage, uint64_t storage_axes,
                          void *data)
{
    if (tensor == NULL)
        return sim_fail(ACLNN_PARAM_NULLPTR, "aclInitTensor: the tensor is NULL");
    aclTensor *alive = nnop_alive(tensor, NNOP_TENSOR, "aclInitTensor");
    return describe(&alive->view, shape, axes, dtype, strides, offset, format, storage,
                    storage_axes, data);
}

aclnnStatus aclDestroyTensor(const aclTensor *tensor)
{
    if (tensor != NULL)
        nnop_dead(nnop_alive(tensor, NNOP_TENSOR, "aclDestroyTensor"), NNOP_TENSOR);
    return 0;
}

aclnnStatus aclSetRawTensorAddr(aclTensor *tensor, void *data)
{
    if (tensor == NULL)
        return sim_fail(ACLNN_PARAM_NULLPTR, "aclSetRawTensorAddr: the tensor is NULL");
    ((aclTensor *)nnop_alive(tensor, NNOP_TENSOR, "aclSetRawTensorAddr"))->view.data = data;
    return 0;
}

/* The view, or NULL with the code noted: for functions that ask two pointers. */
static const nnop_view *asked(const aclTensor *tensor, const void *a, const void *b,
                              const char *function)
{
    if (tensor != NULL && a != NULL && b != NULL)
        return &((aclTensor *)nnop_alive(tensor, NNOP_TENSOR, function))->view;
    sim_fail(ACLNN_PARAM_NULLPTR, "%s: an argument is NULL", function);
    return NULL;
}

/* As the vendor's does, this makes an array for the caller to free. */
static aclnnStatus give(const int64_t *values, int count, int64_t **to, uint64_t *number)
{
    *to = malloc((count > 0 ? (size_t)count : 1) * sizeof **to);
    if (*to == NULL)
        return sim_fail(ACLNN_INNER, "no memory for an array of %d", count);
    memcpy(*to, values, (size_t)count * sizeof **to);
    *number = (uint64_t)count;
    return 0;
}

aclnnStatus aclGetViewShape(const aclTensor *tensor, int64_t **dims, uint64_t *count)
{
    const nnop_view *view = asked(tensor, dims, count, "aclGetViewShape");
    return view ? give(view->shape, view->axes, dims, count) : ACLNN_PARAM_NULLPTR;
}

aclnnStatus aclGetStorageShape(const aclTensor *tensor, int64_t **dims, uint64_t *count)
{
    const nnop_view *view = asked(tensor, dims, count, "aclGetStorageShape");
    return view ? give(view->storage, view->storage_axes, dims, count) : ACLNN_PARAM_NULLPTR;
}

aclnnStatus aclGetViewStrides(const aclTensor *tensor, int64_t **strides, uint64_t *count)
{
    const nnop_view *view = asked(tensor, strides, count, "aclGetViewStrides");
    return view ? give(view->strides, view->axes, strides, count) : ACLNN_PARAM_NULLPTR;
}

#define GETTER(Function, Type, field)                                   \
    ACL_API aclnnStatus Function(const aclTensor *tensor, Type *value)  \
    {                                                                   \
        const nnop_view *view = asked(tensor, value, value, #Function); \
        if (view == NULL)                                               \
            return ACLNN_PARAM_NULLPTR;                                 \
        *value = view->field;                                           \
        return 0;                                                       \
    }

GETTER(aclGetViewOffset, int64_t, offset)
GETTER(aclGetFormat, aclFormat, format)
GETTER(aclGetDataType, aclDataType, dtype)
GETTER(aclGetRawTensorAddr, void *, data)
