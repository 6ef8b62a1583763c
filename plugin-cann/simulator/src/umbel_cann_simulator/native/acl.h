/* The vendor's C interface as far as Umbel speaks it: numbers, types and prototypes, written
 * down from their documented values. Operators (aclnn*) are declared where they are defined. */
#ifndef ACL_H
#define ACL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ACL_API __attribute__((visibility("default")))

typedef int aclError;
typedef int32_t aclnnStatus;
typedef uint16_t aclFloat16;
typedef void *aclrtStream, *aclrtEvent, *aclrtContext, *aclrtDrvMemHandle, *aclmdlRI;
typedef void (*aclrtCallback)(void *arg);

typedef enum {
    ACL_DT_UNDEFINED = -1, ACL_FLOAT = 0, ACL_FLOAT16 = 1, ACL_INT8 = 2, ACL_INT32 = 3,
    ACL_UINT8 = 4, ACL_INT16 = 6, ACL_UINT16 = 7, ACL_UINT32 = 8, ACL_INT64 = 9,
    ACL_UINT64 = 10, ACL_DOUBLE = 11, ACL_BOOL = 12, ACL_STRING = 13, ACL_COMPLEX64 = 16,
    ACL_COMPLEX128 = 17, ACL_BF16 = 27, ACL_INT4 = 29, ACL_UINT1 = 30, ACL_COMPLEX32 = 33
} aclDataType;

typedef enum {
    ACL_FORMAT_UNDEFINED = -1, ACL_FORMAT_NCHW = 0, ACL_FORMAT_NHWC = 1, ACL_FORMAT_ND = 2,
    ACL_FORMAT_NC1HWC0 = 3, ACL_FORMAT_FRACTAL_Z = 4, ACL_FORMAT_NC1HWC0_C04 = 12,
    ACL_FORMAT_HWCN = 16, ACL_FORMAT_NDHWC = 27, ACL_FORMAT_FRACTAL_NZ = 29,
    ACL_FORMAT_NCDHW = 30, ACL_FORMAT_NDC1HWC0 = 32, ACL_FORMAT_FRACTAL_Z_3D = 33,
    ACL_FORMAT_NC = 35, ACL_FORMAT_NCL = 47
} aclFormat;

enum { /* of the runtime */
    ACL_SUCCESS = 0, ACL_ERROR_INVALID_PARAM = 100000, ACL_ERROR_UNINITIALIZE = 100001,
    ACL_ERROR_REPEAT_INITIALIZE = 100002, ACL_ERROR_INVALID_FILE = 100003,
    ACL_ERROR_WAIT_CALLBACK_TIMEOUT = 100036, ACL_ERROR_REPEAT_FINALIZE = 100037,
    ACL_ERROR_RT_PARAM_INVALID = 107000, ACL_ERROR_RT_INVALID_DEVICEID = 107001,
    ACL_ERROR_RT_CONTEXT_NULL = 107002, ACL_ERROR_RT_STREAM_CONTEXT = 107003,
    ACL_ERROR_RT_EVENT_TIMESTAMP_INVALID = 107006,
    ACL_ERROR_RT_EVENT_TIMESTAMP_REVERSAL = 107007, ACL_ERROR_RT_STREAM_NO_CB_REG = 107015,
    ACL_ERROR_RT_INVALID_MEMORY_TYPE = 107016, ACL_ERROR_RT_INVALID_HANDLE = 107017,
    ACL_ERROR_RT_STREAM_ABORT = 107023, ACL_ERROR_RT_CAPTURE_DEPENDENCY = 107024,
    ACL_ERROR_RT_STREAM_UNJOINED = 107025, ACL_ERROR_RT_MODEL_CAPTURED = 107026,
    ACL_ERROR_RT_STREAM_CAPTURED = 107027, ACL_ERROR_RT_EVENT_CAPTURED = 107028,
    ACL_ERROR_RT_STREAM_NOT_CAPTURED = 107029, ACL_ERROR_RT_CAPTURE_MODE_NOT_SUPPORT = 107030,
    ACL_ERROR_RT_STREAM_CAPTURE_IMPLICIT = 107031,
    ACL_ERROR_RT_CAPTURE_MODE_BLOCK_ASYNC = 107041, ACL_ERROR_RT_FEATURE_NOT_SUPPORT = 207000,
    ACL_ERROR_RT_MEMORY_ALLOCATION = 207001, ACL_ERROR_RT_NO_EVENT_RESOURCE = 207007,
    ACL_ERROR_RT_NO_STREAM_RESOURCE = 207008, ACL_ERROR_RT_AICORE_EXCEPTION = 507015,
    ACL_ERROR_RT_STREAM_SYNC_TIMEOUT = 507046, ACL_ERROR_RT_DRV_INTERNAL_ERROR = 507899
};

enum { /* of operators */
    ACLNN_PARAM_NULLPTR = 161001, ACLNN_PARAM_INVALID = 161002, ACLNN_RUNTIME_ERROR = 361001,
    ACLNN_INNER = 561000, ACLNN_INFERSHAPE = 561001, ACLNN_TILING = 561002,
    ACLNN_FIND_KERNEL = 561003, ACLNN_CREATE_EXECUTOR = 561101,
    ACLNN_NOT_TRANS_EXECUTOR = 561102, ACLNN_NULLPTR = 561103, ACLNN_WRONG_ATTR = 561104,
    ACLNN_KEY_CONFLICT = 561105, ACLNN_OPP_PATH_NOT_FOUND = 561107, ACLNN_LOAD_JSON = 561108,
    ACLNN_OPP_KERNEL_PKG_NOT_FOUND = 561112
};

typedef enum {
    ACL_MEMCPY_HOST_TO_HOST, ACL_MEMCPY_HOST_TO_DEVICE, ACL_MEMCPY_DEVICE_TO_HOST,
    ACL_MEMCPY_DEVICE_TO_DEVICE, ACL_MEMCPY_DEFAULT, ACL_MEMCPY_HOST_TO_BUF_TO_DEVICE,
    ACL_MEMCPY_INNER_DEVICE_TO_DEVICE, ACL_MEMCPY_INTER_DEVICE_TO_DEVICE
} aclrtMemcpyKind;

typedef enum {
    ACL_MEM_MALLOC_HUGE_FIRST, ACL_MEM_MALLOC_HUGE_ONLY, ACL_MEM_MALLOC_NORMAL_ONLY,
    ACL_MEM_MALLOC_HUGE_FIRST_P2P, ACL_MEM_MALLOC_HUGE_ONLY_P2P,
    ACL_MEM_MALLOC_NORMAL_ONLY_P2P, ACL_MEM_MALLOC_HUGE1G_ONLY,
    ACL_MEM_MALLOC_HUGE1G_ONLY_P2P, ACL_MEM_TYPE_LOW_BAND_WIDTH = 0x0100,
    ACL_MEM_TYPE_HIGH_BAND_WIDTH = 0x1000
} aclrtMemMallocPolicy;

typedef enum {
    ACL_DDR_MEM, ACL_HBM_MEM, ACL_DDR_MEM_HUGE, ACL_DDR_MEM_NORMAL, ACL_HBM_MEM_HUGE,
    ACL_HBM_MEM_NORMAL, ACL_DDR_MEM_P2P_HUGE, ACL_DDR_MEM_P2P_NORMAL, ACL_HBM_MEM_P2P_HUGE,
    ACL_HBM_MEM_P2P_NORMAL, ACL_HBM_MEM_HUGE1G, ACL_HBM_MEM_P2P_HUGE1G
} aclrtMemAttr;

typedef enum { ACL_DEVICE, ACL_HOST } aclrtRunMode;
typedef enum { ACL_EVENT_RECORDED_STATUS_NOT_READY, ACL_EVENT_RECORDED_STATUS_COMPLETE }
    aclrtEventRecordedStatus;
typedef enum { ACL_EVENT_STATUS_COMPLETE, ACL_EVENT_STATUS_NOT_READY } aclrtEventStatus;
typedef enum { ACL_EVENT_WAIT_STATUS_COMPLETE, ACL_EVENT_WAIT_STATUS_NOT_READY }
    aclrtEventWaitStatus;
typedef enum { ACL_STREAM_STATUS_COMPLETE, ACL_STREAM_STATUS_NOT_READY } aclrtStreamStatus;
typedef enum { ACL_RT_THREAD_LEVEL } aclrtLastErrLevel;
typedef enum { ACL_CALLBACK_NO_BLOCK, ACL_CALLBACK_BLOCK } aclrtCallbackBlockType;
typedef enum { ACL_MODEL_RI_CAPTURE_MODE_GLOBAL, ACL_MODEL_RI_CAPTURE_MODE_THREAD_LOCAL,
    ACL_MODEL_RI_CAPTURE_MODE_RELAXED } aclmdlRICaptureMode;
typedef enum { ACL_MODEL_RI_CAPTURE_STATUS_NONE, ACL_MODEL_RI_CAPTURE_STATUS_ACTIVE,
    ACL_MODEL_RI_CAPTURE_STATUS_INVALIDATED } aclmdlRICaptureStatus;
typedef enum { ACL_DEVICE_INFO_AI_CORE_NUM, ACL_DEVICE_INFO_VECTOR_CORE_NUM,
    ACL_DEVICE_INFO_L2_SIZE } aclDeviceInfo;
typedef enum { ACL_PKG_NAME_CANN, ACL_PKG_NAME_RUNTIME, ACL_PKG_NAME_COMPILER,
    ACL_PKG_NAME_HCCL, ACL_PKG_NAME_TOOLKIT, ACL_PKG_NAME_OPP, ACL_PKG_NAME_OPP_KERNEL,
    ACL_PKG_NAME_DRIVER } aclCANNPackageName;

enum { ACL_CONTINUE_ON_FAILURE, ACL_STOP_ON_FAILURE };
enum { ACL_EVENT_SYNC = 1, ACL_EVENT_CAPTURE_STREAM_PROGRESS = 2, ACL_EVENT_TIME_LINE = 8,
    ACL_EVENT_DEVICE_USE_ONLY = 0x10, ACL_EVENT_EXTERNAL = 0x20, ACL_EVENT_IPC = 0x40 };
enum { ACL_STREAM_FAST_LAUNCH = 1, ACL_STREAM_FAST_SYNC = 2, ACL_STREAM_PERSISTENT = 4,
    ACL_STREAM_HUGE = 8, ACL_STREAM_CPU_SCHEDULE = 0x10, ACL_STREAM_DEVICE_USE_ONLY = 0x20 };

typedef struct {
    int handleType, allocationType, memAttr;
    struct { uint32_t id; int type; } location; /* type 0: host, 1: device */
    uint64_t reserve;
} aclrtPhysicalMemProp;

typedef struct {
    int32_t cube, vector, aicpu, memory; /* percent; -1: not told */
    void *ext;
} aclrtUtilizationInfo;

typedef struct {
    char version[128], major[64], minor[64], release[64], patch[64], reserved[128];
} aclCANNPackageVersion;

/* The process */
ACL_API aclError aclInit(const char *config);
ACL_API aclError aclFinalize(void);
ACL_API aclError aclrtGetVersion(int32_t *major, int32_t *minor, int32_t *patch);
ACL_API const char *aclrtGetSocName(void);
ACL_API const char *aclGetRecentErrMsg(void);
ACL_API aclError aclsysGetCANNVersion(aclCANNPackageName name, aclCANNPackageVersion *version);
ACL_API size_t aclDataTypeSize(aclDataType type);
ACL_API float aclFloat16ToFloat(aclFloat16 value);
ACL_API aclFloat16 aclFloatToFloat16(float value);
ACL_API aclError aclrtPeekAtLastError(aclrtLastErrLevel level);
ACL_API aclError aclrtGetLastError(aclrtLastErrLevel level);

/* Devices and contexts */
ACL_API aclError aclGetDeviceCapability(uint32_t device, aclDeviceInfo what, int64_t *value);
ACL_API aclError aclrtGetDeviceCount(uint32_t *count);
ACL_API aclError aclrtSetDevice(int32_t device);
ACL_API aclError aclrtResetDevice(int32_t device);
ACL_API aclError aclrtResetDeviceForce(int32_t device);
ACL_API aclError aclrtGetDevice(int32_t *device);
ACL_API aclError aclrtGetRunMode(aclrtRunMode *mode);
ACL_API aclError aclrtSynchronizeDevice(void);
ACL_API aclError aclrtGetDeviceUtilizationRate(int32_t device, aclrtUtilizationInfo *info);
ACL_API aclError aclrtDeviceCanAccessPeer(int32_t *can, int32_t device, int32_t peer);
ACL_API aclError aclrtDeviceEnablePeerAccess(int32_t peer, uint32_t flags);
ACL_API aclError aclrtDeviceDisablePeerAccess(int32_t peer);
ACL_API aclError aclrtCreateContext(aclrtContext *context, int32_t device);
ACL_API aclError aclrtDestroyContext(aclrtContext context);
ACL_API aclError aclrtSetCurrentContext(aclrtContext context);
ACL_API aclError aclrtGetCurrentContext(aclrtContext *context);

/* Streams and events */
ACL_API aclError aclrtCreateStream(aclrtStream *stream);
ACL_API aclError aclrtCreateStreamWithConfig(aclrtStream *stream, uint32_t priority,
                                             uint32_t flag);
ACL_API aclError aclrtDestroyStream(aclrtStream stream);
ACL_API aclError aclrtDestroyStreamForce(aclrtStream stream);
ACL_API aclError aclrtStreamQuery(aclrtStream stream, aclrtStreamStatus *status);
ACL_API aclError aclrtSynchronizeStream(aclrtStream stream);
ACL_API aclError aclrtSynchronizeStreamWithTimeout(aclrtStream stream, int32_t ms);
ACL_API aclError aclrtSetStreamFailureMode(aclrtStream stream, uint64_t mode);
ACL_API aclError aclrtCreateEvent(aclrtEvent *event);
ACL_API aclError aclrtCreateEventWithFlag(aclrtEvent *event, uint32_t flag);
ACL_API aclError aclrtCreateEventExWithFlag(aclrtEvent *event, uint32_t flag);
ACL_API aclError aclrtDestroyEvent(aclrtEvent event);
ACL_API aclError aclrtRecordEvent(aclrtEvent event, aclrtStream stream);
ACL_API aclError aclrtResetEvent(aclrtEvent event, aclrtStream stream);
ACL_API aclError aclrtStreamWaitEvent(aclrtStream stream, aclrtEvent event);
ACL_API aclError aclrtSynchronizeEvent(aclrtEvent event);
ACL_API aclError aclrtQueryEvent(aclrtEvent event, aclrtEventStatus *status);
ACL_API aclError aclrtQueryEventStatus(aclrtEvent event, aclrtEventRecordedStatus *status);
ACL_API aclError aclrtQueryEventWaitStatus(aclrtEvent event, aclrtEventWaitStatus *status);
ACL_API aclError aclrtEventElapsedTime(float *ms, aclrtEvent start, aclrtEvent end);
ACL_API aclError aclrtLaunchCallback(aclrtCallback run, void *arg, aclrtCallbackBlockType type,
                                     aclrtStream stream);
ACL_API aclError aclrtSubscribeReport(uint64_t thread, aclrtStream stream);
ACL_API aclError aclrtUnSubscribeReport(uint64_t thread, aclrtStream stream);
ACL_API aclError aclrtProcessReport(int32_t ms);

/* Memory */
ACL_API aclError aclrtMalloc(void **at, size_t size, aclrtMemMallocPolicy policy);
ACL_API aclError aclrtMallocAlign32(void **at, size_t size, aclrtMemMallocPolicy policy);
ACL_API aclError aclrtMallocCached(void **at, size_t size, aclrtMemMallocPolicy policy);
ACL_API aclError aclrtFree(void *at);
ACL_API aclError aclrtMallocHost(void **at, size_t size);
ACL_API aclError aclrtFreeHost(void *at);
ACL_API aclError aclrtGetMemInfo(aclrtMemAttr attr, size_t *free, size_t *total);
ACL_API aclError aclrtMemset(void *at, size_t max, int32_t value, size_t count);
ACL_API aclError aclrtMemsetAsync(void *at, size_t max, int32_t value, size_t count,
                                  aclrtStream stream);
ACL_API aclError aclrtMemcpy(void *dst, size_t max, const void *src, size_t count,
                             aclrtMemcpyKind kind);
ACL_API aclError aclrtMemcpyAsync(void *dst, size_t max, const void *src, size_t count,
                                  aclrtMemcpyKind kind, aclrtStream stream);
ACL_API aclError aclrtMemcpy2d(void *dst, size_t dpitch, const void *src, size_t spitch,
                               size_t width, size_t height, aclrtMemcpyKind kind);
ACL_API aclError aclrtMemcpy2dAsync(void *dst, size_t dpitch, const void *src, size_t spitch,
                                    size_t width, size_t height, aclrtMemcpyKind kind,
                                    aclrtStream stream);
ACL_API aclError aclrtReserveMemAddress(void **at, size_t size, size_t align, void *expect,
                                        uint64_t flags);
ACL_API aclError aclrtReleaseMemAddress(void *at);
ACL_API aclError aclrtMallocPhysical(aclrtDrvMemHandle *handle, size_t size,
                                     const aclrtPhysicalMemProp *prop, uint64_t flags);
ACL_API aclError aclrtFreePhysical(aclrtDrvMemHandle handle);
ACL_API aclError aclrtMapMem(void *at, size_t size, size_t offset, aclrtDrvMemHandle handle,
                             uint64_t flags);
ACL_API aclError aclrtUnmapMem(void *at);
ACL_API aclError aclrtMemGetAllocationGranularity(const aclrtPhysicalMemProp *prop, int option,
                                                  size_t *granularity);

/* Capture */
ACL_API aclError aclmdlRICaptureBegin(aclrtStream stream, aclmdlRICaptureMode mode);
ACL_API aclError aclmdlRICaptureEnd(aclrtStream stream, aclmdlRI *model);
ACL_API aclError aclmdlRICaptureGetInfo(aclrtStream stream, aclmdlRICaptureStatus *status,
                                        aclmdlRI *model);
ACL_API aclError aclmdlRIExecuteAsync(aclmdlRI model, aclrtStream stream);
ACL_API aclError aclmdlRIDestroy(aclmdlRI model);

/* Descriptors and executors (libnnopbase) */
typedef struct aclTensor aclTensor;
typedef struct aclScalar aclScalar;
typedef struct aclIntArray aclIntArray;
typedef struct aclFloatArray aclFloatArray;
typedef struct aclBoolArray aclBoolArray;
typedef struct aclTensorList aclTensorList;
typedef struct aclScalarList aclScalarList;
typedef struct aclOpExecutor aclOpExecutor;

ACL_API aclTensor *aclCreateTensor(const int64_t *dims, uint64_t n, aclDataType type,
                                   const int64_t *strides, int64_t offset, aclFormat format,
                                   const int64_t *storage, uint64_t storage_n, void *data);
ACL_API aclScalar *aclCreateScalar(void *value, aclDataType type);
ACL_API aclIntArray *aclCreateIntArray(const int64_t *values, uint64_t n);
ACL_API aclFloatArray *aclCreateFloatArray(const float *values, uint64_t n);
ACL_API aclBoolArray *aclCreateBoolArray(const bool *values, uint64_t n);
ACL_API aclTensorList *aclCreateTensorList(const aclTensor *const *tensors, uint64_t n);
ACL_API aclScalarList *aclCreateScalarList(const aclScalar *const *scalars, uint64_t n);
ACL_API aclnnStatus aclDestroyTensor(const aclTensor *tensor);
ACL_API aclnnStatus aclDestroyScalar(const aclScalar *scalar);
ACL_API aclnnStatus aclDestroyIntArray(const aclIntArray *array);
ACL_API aclnnStatus aclDestroyFloatArray(const aclFloatArray *array);
ACL_API aclnnStatus aclDestroyBoolArray(const aclBoolArray *array);
ACL_API aclnnStatus aclDestroyTensorList(const aclTensorList *list);
ACL_API aclnnStatus aclDestroyScalarList(const aclScalarList *list);
ACL_API aclnnStatus aclGetViewShape(const aclTensor *tensor, int64_t **dims, uint64_t *n);
ACL_API aclnnStatus aclGetStorageShape(const aclTensor *tensor, int64_t **dims, uint64_t *n);
ACL_API aclnnStatus aclGetViewStrides(const aclTensor *tensor, int64_t **strides, uint64_t *n);
ACL_API aclnnStatus aclGetViewOffset(const aclTensor *tensor, int64_t *offset);
ACL_API aclnnStatus aclGetFormat(const aclTensor *tensor, aclFormat *format);
ACL_API aclnnStatus aclGetDataType(const aclTensor *tensor, aclDataType *type);
ACL_API aclnnStatus aclInitTensor(aclTensor *tensor, const int64_t *dims, uint64_t n,
                                  aclDataType type, const int64_t *strides, int64_t offset,
                                  aclFormat format, const int64_t *storage, uint64_t storage_n,
                                  void *data);
ACL_API aclnnStatus aclSetRawTensorAddr(aclTensor *tensor, void *data);
ACL_API aclnnStatus aclGetRawTensorAddr(const aclTensor *tensor, void **data);
ACL_API aclnnStatus aclSetAclOpExecutorRepeatable(aclOpExecutor *executor);
ACL_API aclnnStatus aclDestroyAclOpExecutor(aclOpExecutor *executor);
ACL_API aclnnStatus aclSetInputTensorAddr(aclOpExecutor *executor, size_t index,
                                          aclTensor *tensor, void *data);
ACL_API aclnnStatus aclSetOutputTensorAddr(aclOpExecutor *executor, size_t index,
                                           aclTensor *tensor, void *data);
ACL_API aclnnStatus aclSetTensorAddr(aclOpExecutor *executor, size_t index, aclTensor *tensor,
                                     void *data);
ACL_API aclnnStatus aclSetDynamicInputTensorAddr(aclOpExecutor *executor, size_t index,
                                                 size_t member, aclTensorList *list,
                                                 void *data);
ACL_API aclnnStatus aclSetDynamicOutputTensorAddr(aclOpExecutor *executor, size_t index,
                                                  size_t member, aclTensorList *list,
                                                  void *data);
ACL_API aclnnStatus aclSetDynamicTensorAddr(aclOpExecutor *executor, size_t index,
                                            size_t member, aclTensorList *list, void *data);
ACL_API aclnnStatus aclnnInit(const char *config);
ACL_API aclnnStatus aclnnFinalize(void);

#endif
