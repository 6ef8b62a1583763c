/* Descriptors and executors from inside: what libnnopbase keeps and libopapi reads.

   An executor holds a `nnop_call`: the operator's function with copies of all that it was told.
   A descriptor may therefore be destroyed as soon as phase 1 has returned. */
#ifndef NNOP_H
#define NNOP_H

#include "acl.h"
#include "sim.h"

enum { NNOP_AXES = 8, NNOP_NUMBERS = 8, NNOP_INTEGERS = 24, NNOP_ARRAY = 256 };

/* How values lie in device memory: what a tensor's descriptor says. Strides, offset and storage
   count elements. */
typedef struct {
    aclDataType dtype;
    aclFormat format;
    int axes, storage_axes;
    int64_t shape[NNOP_AXES], strides[NNOP_AXES], storage[NNOP_AXES];
    int64_t offset;
    void *data;
} nnop_view;

struct aclTensor {
    uint32_t magic;
    nnop_view view;
};

struct aclScalar {
    uint32_t magic;
    aclDataType dtype;
    double value;
};

struct aclIntArray {
    uint32_t magic;
    uint64_t count;
    int64_t *values;
};

struct aclFloatArray {
    uint32_t magic;
    uint64_t count;
    float *values;
};

struct aclBoolArray {
    uint32_t magic;
    uint64_t count;
    bool *values;
};

struct aclTensorList {
    uint32_t magic;
    uint64_t count;
    aclTensor **values;
};

struct aclScalarList {
    uint32_t magic;
    uint64_t count;
    aclScalar **values;
};

/* One tensor of a call. What is computed in place counts as an output. */
typedef struct {
    nnop_view view;
    const void *handle;   /* the descriptor that phase 1 was given; NULL: it is absent */
    int argument, member; /* which one of the operator's tensors, and of a list's */
    bool out;
} nnop_slot;

typedef struct nnop_call nnop_call;
struct nnop_call {
    const char *name;
    void (*run)(const nnop_call *call); /* on the device's worker, once for each launch */
    double (*calc)(double x, double y, const double *p); /* of elementwise operators */
    double number[NNOP_NUMBERS];
    int64_t integer[NNOP_INTEGERS];
    int64_t array[NNOP_ARRAY];
    double flops, bytes;
    void *workspace;
    uint64_t workspace_size;
    bool once; /* cannot be made repeatable */
    bool wrong; /* its results are to be spoilt: a fault asked for */
    int slots;
    nnop_slot slot[];
};

/* Descriptors, checked: these end the process where the pointer is none or is used up. */
ACL_API const nnop_view *nnop_tensor(const aclTensor *tensor);
ACL_API const aclScalar *nnop_scalar(const aclScalar *scalar);
ACL_API const aclIntArray *nnop_ints(const aclIntArray *array);
ACL_API const aclTensorList *nnop_tensors(const aclTensorList *list);

/* An executor that owns `call` (from malloc); NULL: too many wait for their phase 2. */
ACL_API aclOpExecutor *nnop_executor(nnop_call *call);

/* Phase 2 of the operator `name`. */
ACL_API aclnnStatus nnop_launch(const char *name, void *workspace, uint64_t size,
                                aclOpExecutor *executor, aclrtStream stream);

ACL_API size_t nnop_size(aclDataType dtype, int64_t count); /* bytes; 0: unknown type */
ACL_API double nnop_number(aclDataType dtype, const void *value);
ACL_API int64_t nnop_elements(const nnop_view *view);
ACL_API int64_t nnop_extent(const nnop_view *view); /* from the first one to the last */

#endif
