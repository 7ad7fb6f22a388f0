/* The gradients of a transposed convolution whose output goes through max windows at once: each window's
 * gradient belongs to one output, its first maximum (of NaNs the last), and most are 0.
 *
 * All tensors are dense and of one type. Axes that a problem does not have come first, with sizes of 1. */
#ifndef TRANSFUSE_WINNERS_H
#define TRANSFUSE_WINNERS_H
#include "program.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    int32_t element; /* TF_F32 or TF_F64 */
    int64_t batch, in_channels, out_channels, groups;
    int64_t spatial[3], kernel[3], stride[3], padding[3], dilation[3], outputs[3];
    int64_t windows[3]; /* how many there are */
    int64_t window[3], window_stride[3], window_padding[3], window_dilation[3];
    const void* gradient; /* (batch, out_channels, windows) */
    const void* values;   /* (batch, out_channels, outputs); null: those that are needed are computed again */
    const void* bias;     /* (out_channels), for values that are computed again; or null */
    const void* input;    /* (batch, spatial, in_channels) */
    const void* weights;  /* (out_channels, kernel, in_channels / groups) */
    void* by_input;       /* as the input, or null */
    void* by_weights;     /* as the weights, or null */
} transfuse_winners;

#ifdef __cplusplus
}
#endif
#endif
