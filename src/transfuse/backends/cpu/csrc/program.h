/* A program: what one call computes, as plain data. Python and the five problems build it; the
 * engine runs it. Everything is three axes deep: missing ones have size 1. */
#ifndef TRANSFUSE_PROGRAM_H
#define TRANSFUSE_PROGRAM_H
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum transfuse_element { TF_F32, TF_F64, TF_F16, TF_BF16 };

/* Steps over a tile of values [position][channel]. A segment ends at TF_CUT. */
enum transfuse_op {
    TF_ADD,          /* x + (t0[c] or f0) */
    TF_SCALE,        /* x * (t0[c] or f0) */
    TF_CLAMP,        /* min(max(x, f0), f1) */
    TF_NORM,         /* (x - t2[c]) / sqrt(t3[c] + f0) * t0[c] + t1[c] */
    TF_SIGMOID,
    TF_TANH,
    TF_SOFTMAX,      /* over channels */
    TF_SUM,          /* over channels, one is left */
    TF_MAX_POOL,     /* window */
    TF_SUM_POOL,     /* window; times f0 */
    TF_SIGN_POOL,    /* window: max where t0[c] >= 0, else min */
    TF_BATCH_STATS,  /* gather mean and variance of a channel, also into `moments` */
    TF_GROUP_STATS,  /* gather mean and variance of (sample, i0 groups of channels) */
    TF_EXP_STATS,    /* x = exp(x); gather the sum of (sample, channel) */
    TF_MAX_STATS,    /* gather maximum and sum of exp(x - maximum) of (sample, channel) */
    TF_CUT,          /* i0: 0 store the values, 1 compute them again */
    TF_BATCH_APPLY,  /* (x - mean) / sqrt(var + f0) * t0[c] + t1[c] */
    TF_GROUP_APPLY,  /* the same by (sample, group) */
    TF_EXP_APPLY,    /* x / sum */
    TF_MAX_APPLY,    /* exp(x - maximum) / sum */
    TF_GROUP_NORM,   /* stats and apply within a tile that is a whole sample */
    TF_SPACE_SOFTMAX /* the same for the softmax over space */
};

typedef struct {
    int32_t op;
    int32_t i0;
    int32_t kernel[3], stride[3], padding[3];
    double f0, f1;
    const void* t0; /* one element of the type of the program's operands per channel, or null */
    const void* t1;
    const void* t2;
    const void* t3;
    double* moments; /* of TF_BATCH_STATS: room for the means, then the variances, or null */
} transfuse_step;

typedef struct {
    int32_t element;
    int32_t operands; /* the type of the steps' operands: `element`, or TF_F32 beside 16 bits */
    int32_t careful; /* weights are not finite: no product with a zero that stands for nothing */
    int64_t batch, in_channels, out_channels, groups;
    int64_t spatial[3], kernel[3], stride[3], padding[3], dilation[3], output_padding[3];
    int32_t pooled;       /* whether `pool` comes before the convolution */
    transfuse_step pool;  /* TF_MAX_POOL or TF_SUM_POOL on the input */
    int32_t steps_count;
    const transfuse_step* steps;
    const void* input;
    int64_t input_strides[5]; /* in elements: n, c, d, h, w */
    const void* weights;      /* packed by transfuse_pack */
    void* output;
    int64_t output_strides[5];
    double weight_scale;
} transfuse_program;

#ifdef __cplusplus
}
#endif
#endif
