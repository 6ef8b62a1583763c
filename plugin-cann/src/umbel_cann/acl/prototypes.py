"""What the vendor's functions take and give, one letter for each value.

`abi.toml` beside the sources says the same in C; a test compares the two. A letter of `KINDS`
stands for a C type; all pointers are alike to a call, and an operator's letters also tell which
descriptor is meant. A function gives an int unless it is in `RESULTS`.
"""

import ctypes
from collections.abc import Mapping
from typing import Any

KINDS: Mapping[str, Any] = {
    "i": ctypes.c_int32,
    "u": ctypes.c_uint32,
    "l": ctypes.c_int64,
    "U": ctypes.c_uint64,
    "z": ctypes.c_size_t,
    "c": ctypes.c_int8,
    "h": ctypes.c_uint16,
    "b": ctypes.c_bool,
    "f": ctypes.c_float,
    "d": ctypes.c_double,
    "s": ctypes.c_char_p,
    "p": ctypes.c_void_p,
    "T": ctypes.c_void_p,  # aclTensor*
    "S": ctypes.c_void_p,  # aclScalar*
    "A": ctypes.c_void_p,  # aclIntArray*
    "L": ctypes.c_void_p,  # aclTensorList*
}

FUNCTIONS: Mapping[str, str] = {
    "aclInit": "s",
    "aclFinalize": "",
    "aclrtGetVersion": "ppp",
    "aclGetRecentErrMsg": "",
    "aclrtGetSocName": "",
    "aclsysGetCANNVersion": "ip",
    "aclGetDeviceCapability": "uip",
    "aclrtGetDeviceCount": "p",
    "aclrtSetDevice": "i",
    "aclrtResetDevice": "i",
    "aclrtGetRunMode": "p",
    "aclrtGetDeviceUtilizationRate": "ip",
    "aclrtDeviceCanAccessPeer": "pii",
    "aclrtDeviceEnablePeerAccess": "iu",
    "aclrtSetCurrentContext": "p",
    "aclrtGetCurrentContext": "p",
    "aclrtCreateStream": "p",
    "aclrtDestroyStream": "p",
    "aclrtDestroyStreamForce": "p",
    "aclrtSynchronizeStream": "p",
    "aclrtSynchronizeStreamWithTimeout": "pi",
    "aclrtGetLastError": "i",
    "aclrtCreateEventExWithFlag": "pu",
    "aclrtDestroyEvent": "p",
    "aclrtRecordEvent": "pp",
    "aclrtStreamWaitEvent": "pp",
    "aclrtMalloc": "pzi",
    "aclrtFree": "p",
    "aclrtMallocHost": "pz",
    "aclrtFreeHost": "p",
    "aclrtGetMemInfo": "ipp",
    "aclrtMemset": "pziz",
    "aclrtMemsetAsync": "pzizp",
    "aclrtMemcpy": "pzpzi",
    "aclrtMemcpyAsync": "pzpzip",
    "aclmdlRICaptureBegin": "pi",
    "aclmdlRICaptureEnd": "pp",
    "aclmdlRICaptureGetInfo": "ppp",
    "aclmdlRIExecuteAsync": "pp",
    "aclmdlRIDestroy": "p",
    "aclCreateTensor": "pUiplipUp",
    "aclCreateScalar": "pi",
    "aclCreateIntArray": "pU",
    "aclCreateTensorList": "pU",
    "aclDestroyTensor": "p",
    "aclDestroyScalar": "p",
    "aclDestroyIntArray": "p",
    "aclDestroyTensorList": "p",
    "aclSetAclOpExecutorRepeatable": "p",
    "aclDestroyAclOpExecutor": "p",
}

RESULTS: Mapping[str, str] = {
    "aclGetRecentErrMsg": "s",
    "aclrtGetSocName": "s",
    "aclCreateTensor": "p",
    "aclCreateScalar": "p",
    "aclCreateIntArray": "p",
    "aclCreateTensorList": "p",
}

# The arguments of the first phase, up to the size of the workspace and the executor.
OPERATORS: Mapping[str, str] = {
    "Abs": "TT",
    "Add": "TTST",
    "AddRmsNorm": "TTTdTTT",
    "Addmm": "TTTSSTc",
    "Adds": "TSST",
    "Argsort": "TlbT",
    "BatchMatMul": "TTTc",
    "Cast": "TiT",
    "Cat": "LlT",
    "Clamp": "TSST",
    "Convolution": "TTTAAAbAlTc",
    "Div": "TTT",
    "Embedding": "TTT",
    "Exp": "TT",
    "FusedInferAttentionScoreV2": "TLLTTAATTTTTTTTTTTTTTTTAldllslllllbllTT",
    "GatherV2": "TlTT",
    "GeGluV3": "TllbTT",
    "Gelu": "TT",
    "GeluV2": "TlT",
    "GtScalar": "TST",
    "IndexSelect": "TlTT",
    "InplaceAdd": "TTS",
    "InplaceCopy": "TT",
    "InplaceFillScalar": "TS",
    "InplaceIndexCopy": "TlTT",
    "LayerNorm": "TATTdTTT",
    "Matmul": "TTTc",
    "Mean": "TAbiT",
    "Mm": "TTTc",
    "Mul": "TTT",
    "Muls": "TST",
    "Neg": "TT",
    "Norm": "TSAbT",
    "PowScalarTensor": "STT",
    "ReduceSum": "TAbiT",
    "Relu": "TT",
    "RmsNorm": "TTdTT",
    "RotaryPositionEmbedding": "TTTlT",
    "Rsqrt": "TT",
    "Sigmoid": "TT",
    "Silu": "TT",
    "Softmax": "TlT",
    "Softplus": "TSST",
    "Sort": "TblbTT",
    "Sqrt": "TT",
    "Sub": "TTST",
    "SwiGlu": "TlT",
    "Tanh": "TT",
    "Topk": "TllbbTT",
    "WeightQuantBatchMatmulV2": "TTTTTTTiT",
}

FIRST = "pp"  # uint64_t* workspaceSize, aclOpExecutor** executor
SECOND = "pUpp"  # void* workspace, uint64_t workspaceSize, aclOpExecutor*, aclrtStream


def names(operator: str) -> tuple[str, str]:
    """The functions of an operator's two phases."""
    return f"aclnn{operator}GetWorkspaceSize", f"aclnn{operator}"


def operator_of(name: str) -> str:
    """Whose phase a function is."""
    return name.removeprefix("aclnn").removesuffix("GetWorkspaceSize")


def prototype(name: str, operators: Mapping[str, str] = OPERATORS) -> tuple[Any, list[Any]]:
    """What a function gives and takes, for ctypes."""
    if name in FUNCTIONS:
        result, letters = RESULTS.get(name, "i"), FUNCTIONS[name]
    else:
        operator = operator_of(name)
        first = name == names(operator)[0]
        result, letters = "i", operators[operator] + FIRST if first else SECOND
    return KINDS[result], [KINDS[letter] for letter in letters]
