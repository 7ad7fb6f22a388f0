/* A program: what one call computes, as plain data. Python and the C functions build it; the
 * engine runs it. Everything is three axes deep: missing ones have size 1.
 *
 * Strides, paddings and dilations of the convolution are at most 2^31 - 1, as in torch, an output padding
 * at most 2^33. Paddings may be negative: output o of an axis lies at o + padding in the grid where tap k
 * puts input i at i * stride + k * dilation, or on either side of it. Windows and their strides are at most
 * 2^62; a kernel has at most 2^31 - 1 taps; no tensor, and nothing between two steps, has more than 2^48
 * elements. validate.cpp holds every program to it, so that no sum or product of the engine leaves 64
 * bits. */
#ifndef TRANSFUSE_PROGRAM_H
#define TRANSFUSE_PROGRAM_H
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum transfuse_element { TF_F32, TF_F64, TF_F16, TF_BF16, TF_ELEMENTS };

/* Steps over a tile of values [position][channel]. A segment ends at TF_CUT. One list, from which the
 * enumeration is made and the names that callers compare theirs with. */
#define TRANSFUSE_EACH_OP(OP)                                                                 \
    OP(ADD)           /* x + (t0[c] or f0) */                                                 \
    OP(SCALE)         /* x * (t0[c] or f0) */                                                 \
    OP(CLAMP)         /* min(max(x, f0), f1) */                                               \
    OP(NORM)          /* (x - t2[c]) / sqrt(t3[c] + f0) * t0[c] + t1[c] */                    \
    OP(SIGMOID)                                                                               \
    OP(TANH)                                                                                  \
    OP(MAP)           /* the pointwise expression `map` */                                    \
    OP(SOFTMAX)       /* over channels */                                                     \
    OP(SUM)           /* over channels, one is left */                                        \
    OP(MAX_POOL)      /* window */                                                            \
    OP(SUM_POOL)      /* window; times f0 */                                                  \
    OP(SIGN_POOL)     /* window: max where t0[c] >= 0, else min */                            \
    OP(BATCH_STATS)   /* gather mean and variance of a channel, also into `moments` */        \
    OP(GROUP_STATS)   /* gather mean and variance of (sample, i0 groups of channels) */       \
    OP(EXP_STATS)     /* x = exp(x); gather the sum of (sample, channel) */                   \
    OP(MAX_STATS)     /* gather maximum and sum of exp(x - maximum) of (sample, channel) */   \
    OP(CUT)           /* i0: what becomes of the values, see below */                         \
    OP(BATCH_APPLY)   /* (x - mean) / sqrt(var + f0) * t0[c] + t1[c] */                       \
    OP(GROUP_APPLY)   /* the same by (sample, group) */                                       \
    OP(EXP_APPLY)     /* x / sum */                                                           \
    OP(MAX_APPLY)     /* exp(x - maximum) / sum */                                            \
    OP(GROUP_NORM)    /* stats and apply within a tile that is a whole sample */              \
    OP(SPACE_SOFTMAX) /* the same for the softmax over space */
#define TRANSFUSE_OP(name) TF_##name,
enum transfuse_op { TRANSFUSE_EACH_OP(TRANSFUSE_OP) TF_OPS };
#undef TRANSFUSE_OP

/* At a cut the values are stored, or computed again, or whichever takes less time: transfuse_decide says
 * which. It may also say that there is no cut: one tile holds all that the statistic covers. */
enum transfuse_cut { TF_STORE, TF_AGAIN, TF_DECIDE, TF_HOLD };

/* What pointwise expressions are made of: first those of two and three arguments, from NO on those of
 * one. True is 1 and false 0. */
#define TRANSFUSE_EACH_PRIMITIVE(P)                                                            \
    P(ADD) P(SUB) P(MUL) P(DIV) P(MINIMUM) P(MAXIMUM) P(CLAMP) P(WHERE)                        \
    P(LT) P(LE) P(EQ) P(BOTH) P(EITHER)                                                        \
    P(NO) P(NEG) P(ABS) P(FLOOR) P(SQRT) P(RSQRT)                                              \
    P(EXP) P(EXPM1) P(LOG) P(LOG1P) P(SIN) P(COS) P(TANH) P(SIGMOID) P(ERF)
#define TRANSFUSE_PRIMITIVE(name) TF_P_##name,
enum transfuse_primitive { TRANSFUSE_EACH_PRIMITIVE(TRANSFUSE_PRIMITIVE) TF_PRIMITIVES };
#undef TRANSFUSE_PRIMITIVE

/* Values by number: 0 the running value, then the code's numbers, its operands, its registers. */
typedef struct {
    uint16_t primitive, to, from[3];
} transfuse_instruction;

enum { TF_REGISTERS = 512 }; /* that code may use */

/* A pointwise expression as code. The last instruction writes the running value, and no other does. */
typedef struct {
    int32_t numbers_count, operands_count, registers_count, length;
    const double* numbers;
    const transfuse_instruction* instructions;
} transfuse_code;

/* A tensor that a map reads beside its values. */
typedef struct {
    int32_t element;
    const void* data;
    int64_t strides[5]; /* in elements: n, c, d, h, w; 0 where it is the same along an axis */
} transfuse_operand;

/* A pointwise expression as a step. */
typedef struct {
    transfuse_code code;
    const transfuse_operand* operands;
} transfuse_map;

typedef struct {
    int32_t op;
    int64_t i0;
    int64_t kernel[3], stride[3], padding[3];
    double f0, f1;
    const void* t0; /* one element of the type of the program's operands per channel, or null */
    const void* t1;
    const void* t2;
    const void* t3;
    double* moments; /* of TF_BATCH_STATS: room for the means, then the variances, or null */
    const transfuse_map* map; /* of TF_MAP */
} transfuse_step;

typedef struct {
    int32_t element; /* of the weights; the arithmetic goes by it */
    int32_t input_element, output_element; /* `element`, or TF_F32 beside 16 bits */
    int32_t operands; /* the type of the steps' operands: `element`, or TF_F32 beside 16 bits */
    int32_t careful; /* weights are not finite: no product with a zero that stands for nothing */
    int64_t batch, in_channels, out_channels, groups;
    int64_t spatial[3], kernel[3], stride[3], padding[3], dilation[3], output_padding[3];
    int32_t before_count;         /* steps on the input: TF_MAP, and one TF_MAX_POOL or TF_SUM_POOL at the most */
    const transfuse_step* before;
    int32_t steps_count;          /* those on the convolution's output */
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
