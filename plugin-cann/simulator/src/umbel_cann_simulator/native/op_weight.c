/* Weights as cube units like them: FRACTAL_NZ, in place of what lay there row by row. */
#include <stdlib.h>
#include <string.h>

#include "op_product.h"

static void transform(const nnop_call *call)
{
    const nnop_view *view = &call->slot[0].view;
    int64_t rows = view->shape[0], columns = view->shape[1];
    int64_t n = op_nz_elements(view->dtype, rows, columns);
    size_t one = nnop_size(view->dtype, 1);
    char *at = sim_at(view->data, (size_t)n * one);
    if (at == NULL) {
        sim_task_fault(507015, "aclnnTransMatmulWeight: no memory for %lld elements",
                       (long long)n);
        return;
    }
    char *made = calloc((size_t)n, one);
    if (made == NULL)
        abort();
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < columns; c++)
            memcpy(made + (size_t)op_nz(view->dtype, rows, r, c) * one,
                   at + (size_t)(r * columns + c) * one, one);
    memcpy(at, made, (size_t)n * one);
    free(made);
}

static bool has_layout(aclDataType dtype)
{
    return dtype == ACL_FLOAT16 || dtype == ACL_BF16 || dtype == ACL_INT8;
}

OP(TransMatmulWeight, aclTensor *mmWeightRef)
{
    BEGIN(TransMatmulWeight, transform);
    const nnop_view *w = op_inout(&o, mmWeightRef, "mmWeightRef");
    op_need(&o, has_layout(w->dtype), "weights of %s", op_dtype(w->dtype));
    op_need(&o, w->axes == 2 && op_contiguous(w) && w->offset == 0,
            "the weight is no contiguous matrix at the start of its memory");
    return op_end(&o);
}

/* How many elements the weight takes afterwards. Computed on the host, in one phase. */
static aclnnStatus weight_size(const char *name, const aclIntArray *shape, aclDataType dtype,
                               uint64_t *size)
{
    if (shape == NULL || size == NULL)
        return sim_fail(ACLNN_PARAM_NULLPTR, "aclnn%s: an argument is NULL", name);
    const aclIntArray *dims = nnop_ints(shape);
    if (!has_layout(dtype) || dims->count != 2 || dims->values[0] <= 0 || dims->values[1] <= 0)
        return sim_fail(ACLNN_PARAM_INVALID, "aclnn%s: it takes the shape of a matrix of f16, "
                        "bf16 or int8", name);
    *size = (uint64_t)op_nz_elements(dtype, dims->values[0], dims->values[1]);
    return 0;
}

ACL_API aclnnStatus aclnnCalculateMatmulWeightSize(const aclIntArray *tensorShape,
                                                   uint64_t *weightTensorSize)
{
    return weight_size("CalculateMatmulWeightSize", tensorShape, ACL_FLOAT16, weightTensorSize);
}

ACL_API aclnnStatus aclnnCalculateMatmulWeightSizeV2(const aclIntArray *tensorShape,
                                                     aclDataType dataType,
                                                     uint64_t *weightTensorSize)
{
    return weight_size("CalculateMatmulWeightSizeV2", tensorShape, dataType, weightTensorSize);
}
