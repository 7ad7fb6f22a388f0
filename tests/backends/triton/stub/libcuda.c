/* A CUDA driver for tests: there is no GPU, and every launch is shown to whoever asked. */
#include "cuda.h"
#include <string.h>

typedef void (*seen_t)(const CUlaunchConfig *, CUfunction, void **);
/* A function that was loaded: its number, its machine code, its name. */
typedef void (*loaded_t)(size_t, const void *, const char *);
/* The bytes of a function's parameter; less than 0 past the last. */
typedef int (*parameter_t)(size_t, size_t);
static seen_t seen;
static loaded_t loaded;
static parameter_t parameter;
static CUresult answer;
static __thread CUcontext context;

void stub_seen(seen_t function) { seen = function; }
void stub_answer(CUresult code) { answer = code; }
void stub_code(loaded_t function, parameter_t size) { loaded = function, parameter = size; }

CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction f, void **params, void **extra) {
  if (!context)
    return CUDA_ERROR_INVALID_CONTEXT;
  if (answer == CUDA_SUCCESS && seen)
    seen(config, f, params);
  return answer;
}

/* The map says all that was asked for, so that it differs wherever a descriptor does. */
CUresult cuTensorMapEncodeTiled(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank,
                                void *address, const cuuint64_t *sizes, const cuuint64_t *strides,
                                const cuuint32_t *box, const cuuint32_t *steps,
                                CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill) {
  cuuint64_t *word = (cuuint64_t *)map;
  memset(map, 0, sizeof *map);
  word[0] = (cuuint64_t)address;
  word[1] = type | rank << 8 | interleave << 16 | swizzle << 20 | promotion << 24 |
            (cuuint64_t)fill << 32;
  for (cuuint32_t i = 0; i < rank; ++i) {
    word[2 + i] = sizes[i];
    word[7 + i] = box[i] | (cuuint64_t)steps[i] << 32;
    word[12 + i] = i + 1 < rank && i < 4 ? strides[i] : 0;
  }
  return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext *found) {
  *found = context;
  return CUDA_SUCCESS;
}
CUresult cuCtxSetCurrent(CUcontext wanted) {
  context = wanted;
  return CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxRetain(CUcontext *made, CUdevice device) {
  *made = (CUcontext)1;
  return CUDA_SUCCESS;
}
CUresult cuCtxGetDevice(CUdevice *device) {
  *device = 0;
  return CUDA_SUCCESS;
}
CUresult cuDriverGetVersion(int *version) {
  *version = 13020; /* before this one, Triton changes maps for the sake of Blackwell */
  return CUDA_SUCCESS;
}
CUresult cuDeviceGet(CUdevice *device, int ordinal) {
  *device = ordinal;
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute which, CUdevice device) {
  *value = 232448; /* shared memory, and more of all else than any kernel asks for */
  return CUDA_SUCCESS;
}
CUresult cuModuleLoadData(CUmodule *module, const void *image) {
  *module = (CUmodule)image;
  return CUDA_SUCCESS;
}
CUresult cuModuleUnload(CUmodule module) { return CUDA_SUCCESS; }
CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) {
  static size_t last;
  *function = (CUfunction)(last += 16);
  if (loaded)
    loaded(last, module, name);
  return CUDA_SUCCESS;
}
CUresult cuFuncGetParamInfo(CUfunction function, size_t index, size_t *offset, size_t *size) {
  int found = parameter((size_t)function, index);
  if (found < 0)
    return CUDA_ERROR_INVALID_VALUE;
  *offset = 0, *size = found;
  return CUDA_SUCCESS;
}
CUresult cuFuncGetAttribute(int *value, CUfunction_attribute which, CUfunction function) {
  *value = 1024;
  return CUDA_SUCCESS;
}
CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute which, int value) {
  return CUDA_SUCCESS;
}
CUresult cuFuncSetCacheConfig(CUfunction function, CUfunc_cache config) { return CUDA_SUCCESS; }
CUresult cuPointerGetAttribute(void *found, CUpointer_attribute which, CUdeviceptr address) {
  *(CUdeviceptr *)found = address;
  return CUDA_SUCCESS;
}
CUresult cuGetErrorString(CUresult code, const char **text) {
  *text = "as the test asked";
  return CUDA_SUCCESS;
}
CUresult cuGetErrorName(CUresult code, const char **name) {
  *name = code == CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES ? "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES" : "?";
  return CUDA_SUCCESS;
}
CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus *status) {
  *status = CU_STREAM_CAPTURE_STATUS_NONE;
  return CUDA_SUCCESS;
}
CUresult cuOccupancyMaxActiveClusters(int *n, CUfunction f, const CUlaunchConfig *c) {
  return CUDA_ERROR_NOT_SUPPORTED;
}
CUresult cuCtxGetLimit(size_t *value, CUlimit which) {
  *value = 0;
  return CUDA_SUCCESS;
}
CUresult cuCtxSetLimit(CUlimit which, size_t value) { return CUDA_SUCCESS; }
