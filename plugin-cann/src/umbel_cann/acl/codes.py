"""The vendor's error codes: their names, and what to do about the usual ones.

1xxxxx is the caller's fault, 2xxxxx a lack of resources, 3xxxxx and 5xxxxx come from within.
"""

from collections.abc import Mapping

SUCCESS = 0
UNINITIALIZE, REPEAT_INITIALIZE = 100001, 100002
NO_MEMORY = 207001
SYNC_TIMEOUT = 507046
NO_KERNEL = 561103

_PLAIN: Mapping[int, str] = {
    100000: "INVALID_PARAM",
    100001: "UNINITIALIZE",
    100002: "REPEAT_INITIALIZE",
    100003: "INVALID_FILE",
    100024: "OP_NOT_FOUND",
    100025: "OP_LOAD_FAILED",
    100026: "UNSUPPORTED_DATA_TYPE",
    100027: "FORMAT_NOT_MATCH",
    100036: "WAIT_CALLBACK_TIMEOUT",
    100037: "REPEAT_FINALIZE",
    100039: "COMPILING_STUB_MODE",
    148049: "INVALID_OPP_PATH",
    200000: "BAD_ALLOC",
    200001: "API_NOT_SUPPORT",
    200002: "INVALID_DEVICE",
    200003: "MEMORY_ADDRESS_UNALIGNED",
    200004: "RESOURCE_NOT_MATCH",
    200005: "INVALID_RESOURCE_HANDLE",
    200006: "FEATURE_UNSUPPORTED",
    300000: "STORAGE_OVER_LIMIT",
    500000: "INTERNAL_ERROR",
    500001: "FAILURE",
    500002: "GE_FAILURE",
    500003: "RT_FAILURE",
    500004: "DRV_FAILURE",
}
_RUNTIME: Mapping[int, str] = {
    107000: "PARAM_INVALID",
    107001: "INVALID_DEVICEID",
    107002: "CONTEXT_NULL",
    107003: "STREAM_CONTEXT",
    107004: "MODEL_CONTEXT",
    107005: "STREAM_MODEL",
    107006: "EVENT_TIMESTAMP_INVALID",
    107007: "EVENT_TIMESTAMP_REVERSAL",
    107008: "ADDR_UNALIGNED",
    107015: "STREAM_NO_CB_REG",
    107016: "INVALID_MEMORY_TYPE",
    107017: "INVALID_HANDLE",
    107018: "INVALID_MALLOC_TYPE",
    107019: "WAIT_TIMEOUT",
    107020: "TASK_TIMEOUT",
    107022: "DEVICE_TASK_ABORT",
    107023: "STREAM_ABORT",
    107024: "CAPTURE_DEPENDENCY",
    107025: "STREAM_UNJOINED",
    107026: "MODEL_CAPTURED",
    107027: "STREAM_CAPTURED",
    107028: "EVENT_CAPTURED",
    107029: "STREAM_NOT_CAPTURED",
    107030: "CAPTURE_MODE_NOT_SUPPORT",
    107031: "STREAM_CAPTURE_IMPLICIT",
    107041: "CAPTURE_MODE_BLOCK_ASYNC",
    207000: "FEATURE_NOT_SUPPORT",
    207001: "MEMORY_ALLOCATION",
    207002: "MEMORY_FREE",
    207003: "AICORE_OVER_FLOW",
    207004: "NO_DEVICE",
    207005: "RESOURCE_ALLOC_FAIL",
    207006: "NO_PERMISSION",
    207007: "NO_EVENT_RESOURCE",
    207008: "NO_STREAM_RESOURCE",
    207018: "DEVIDE_OOM",  # as the vendor spells it
    507000: "INTERNAL_ERROR",
    507002: "STREAM_TASK_FULL",
    507004: "STREAM_NOT_COMPLETE",
    507006: "EVENT_NOT_COMPLETE",
    507007: "CONTEXT_RELEASE_ERROR",
    507008: "SOC_VERSION",
    507010: "LOST_HEARTBEAT",
    507012: "REPORT_TIMEOUT",
    507014: "AICORE_TIMEOUT",
    507015: "AICORE_EXCEPTION",
    507017: "AICPU_TIMEOUT",
    507018: "AICPU_EXCEPTION",
    507034: "VECTOR_CORE_TIMEOUT",
    507035: "VECTOR_CORE_EXCEPTION",
    507046: "STREAM_SYNC_TIMEOUT",
    507047: "EVENT_SYNC_TIMEOUT",
    507053: "DEVICE_MEM_ERROR",
    507054: "HBM_MULTI_BIT_ECC",
    507899: "DRV_INTERNAL_ERROR",
    507901: "SOCKET_CLOSE",
}
_OPERATORS: Mapping[int, str] = {
    161001: "PARAM_NULLPTR",
    161002: "PARAM_INVALID",
    361001: "RUNTIME_ERROR",
    561000: "INNER",
    561001: "INNER_INFERSHAPE",
    561002: "INNER_TILING",
    561003: "INNER_FIND_KERNEL",
    561101: "INNER_CREATE_EXECUTOR",
    561102: "INNER_NOT_TRANS_EXECUTOR",
    561103: "INNER_NULLPTR",
    561104: "INNER_WRONG_ATTR",
    561105: "INNER_KEY_CONFLICT",
    561107: "INNER_OPP_PATH_NOT_FOUND",
    561108: "INNER_LOAD_JSON",
    561112: "INNER_OPP_KERNEL_PKG_NOT_FOUND",
}
NAMES: Mapping[int, str] = {
    SUCCESS: "ACL_SUCCESS",
    **{code: f"ACL_ERROR_{name}" for code, name in _PLAIN.items()},
    **{code: f"ACL_ERROR_RT_{name}" for code, name in _RUNTIME.items()},
    **{code: f"ACLNN_ERR_{name}" for code, name in _OPERATORS.items()},
}

_OURS = "this is a fault of the plugin: report it with the message above"
_FAULT = "`npu-smi info` tells the chip's health; if it is well, report this"
_KERNEL = "this chip or toolkit lacks the kernel: a newer CANN may have it"
_PACKAGE = "install the kernels package of CANN for this chip, and source its set_env.sh"
_GROUP = "put the user into the group of /dev/davinci* (mostly HwHiAiUser) and log in again"
_DEVICES = "`npu-smi info` lists the chips: check driver, device number and group membership"
_WAIT = "raise -O cann.timeout if the step is long; else the chip hangs: see `npu-smi info`"
_HARDWARE = "the chip reports broken memory: reset it (npu-smi), or have it replaced"

ADVICE: Mapping[int, str] = {
    100000: _OURS,
    100003: "another part of this process has initialised ACL with another configuration",
    100039: "a stub library was loaded: leave folders called stub or devlib out of the paths",
    148049: _PACKAGE,
    107000: _OURS,
    107001: _DEVICES,
    107002: _OURS,
    107003: _OURS,
    107017: _OURS,
    107027: "a captured stream cannot be waited for; " + _OURS,
    107030: "not allowed while a stream is captured; " + _OURS,
    161001: _OURS,
    161002: "it refuses these shapes, types or strides: -O cann.debug=sync shows them",
    207000: "the chip or driver lacks the feature: update the driver, or take another device",
    207001: "take a smaller --ctx, --ubatch or model",
    207004: _DEVICES,
    207006: _GROUP,
    207008: "close other programs on the chip: they hold all of its streams",
    207018: "take a smaller --ctx, --ubatch or model",
    361001: _KERNEL,
    500004: "the driver failed: check that driver, firmware and toolkit fit together",
    507008: "the toolkit is not made for this chip",
    507010: "the chip does not answer: reset it, or boot again",
    507014: _WAIT,
    507015: _FAULT,
    507018: _FAULT,
    507035: _FAULT,
    507046: _WAIT,
    507053: _HARDWARE,
    507054: _HARDWARE,
    507899: "the driver failed: check that driver, firmware and toolkit fit together",
    561000: "the library failed within, perhaps for want of host memory",
    561002: _KERNEL,
    561003: _KERNEL,
    561103: _KERNEL,
    561107: _PACKAGE,
    561112: _PACKAGE,
}


def name(code: int) -> str:
    """A code as messages show it: with its name, if it has one."""
    known = NAMES.get(code)
    return f"{known} ({code})" if known else f"error {code}"
