/* transfuse from C: fused transposed convolutions over plain pointers.
 *
 * Every function gives 0, or 1 with transfuse_message() saying why, with the numbers in it. Refused
 * arguments leave the output untouched; memory that runs out half-way may leave it partly written.
 *
 * Tensors are contiguous, the last axis innermost, and have the shapes in the comments: B samples,
 * Ci and Co channels, a kernel of Kd x Kh x Kw. The output may not overlap an input. A batch of 0
 * succeeds, and its input and output may then be null. No size may exceed 2^31 - 1, nor the taps of a
 * kernel; no tensor 2^48 elements.
 *
 * Element types, by the ending of the name: f32 float, f64 double, f16 IEEE half and bf16 bfloat16
 * as their 16 bits. Both 16-bit types compute in float and round once, to nearest even.
 *
 * Threads: as many as OpenMP gives, OMP_NUM_THREADS or all cores; any number gives the same bits.
 * Any thread may call at any time; nothing is kept between calls but each thread's message.
 *
 * Written by `make generate` from the operators' documents. */
#ifndef TRANSFUSE_H
#define TRANSFUSE_H
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Why the last call of this thread that failed did; valid until the next one that does. */
const char* transfuse_message(void);

#define TRANSFUSE_EACH_ELEMENT(PROBLEM) \
    PROBLEM(f32, float);                \
    PROBLEM(f64, double);               \
    PROBLEM(f16, uint16_t);             \
    PROBLEM(bf16, uint16_t)

/* Transposed convolution 2D, square input, asymmetric kernel
 *
 * A transposed convolution in two dimensions, without bias. The name tells of a square image and a
 * kernel of unequal sides; every height, width and kernel is legal.
 *
 * ## Tensors
 *
 *     input    (B, Ci, H, W)
 *     kernel   (Ci, Co / groups, Kh, Kw)
 *     output   (B, Co, Ho, Wo)
 *
 * ## Definition
 *
 * Every input element stamps a scaled copy of the kernel onto the output; overlapping stamps add up.
 * Seen from the output, with `g = co // (Co / groups)` the group of channel `co`:
 *
 * ```
 * output[b, co, oh, ow] = sum over ci of group g, kh, kw:
 *                         input[b, ci, ih, iw] * kernel[ci, co % (Co / groups), kh, kw]
 *
 * where   oh = ih * stride_h - padding_h + kh * dilation_h      0 <= ih < H
 *         ow = iw * stride_w - padding_w + kw * dilation_w      0 <= iw < W
 * ```
 *
 * Group `g` owns the input channels `g * Ci / groups <= ci < (g + 1) * Ci / groups`. A tap for which
 * no whole `ih`, `iw` exists adds nothing; a position that no tap reaches is 0.
 *
 * ```
 * Ho = (H - 1) * stride_h - 2 * padding_h + dilation_h * (Kh - 1) + output_padding_h + 1
 * Wo = (W - 1) * stride_w - 2 * padding_w + dilation_w * (Kw - 1) + output_padding_w + 1
 * ```
 *
 * ## Legal values
 *
 * - `batch_size` >= 0; channels, image, kernel, stride, dilation and `groups` >= 1.
 * - `groups` divides both `in_channels` and `out_channels`.
 * - `padding` >= 0, and it leaves `Ho` >= 1 and `Wo` >= 1.
 * - 0 <= `output_padding` < max(`stride`, `dilation`) on each axis. It adds rows and columns at the
 *   far end only: they are computed like all others, not filled with zeros.
 *
 * Origin: KernelBench level 1 problem 65.
 */
#define TRANSFUSE_CONV_TRANSPOSE_2D_SQUARE_INPUT_ASYM_KERNEL(suffix, element)                      \
    int transfuse_conv_transpose_2d_square_input_asym_kernel_##suffix(                             \
        const element* input, const element* kernel, element* output, size_t batch_size,           \
        size_t in_channels, size_t out_channels, size_t height, size_t width, size_t kernel_h,     \
        size_t kernel_w, size_t stride_h, size_t stride_w, size_t padding_h, size_t padding_w,     \
        size_t output_padding_h, size_t output_padding_w, size_t dilation_h, size_t dilation_w,    \
        size_t groups)
TRANSFUSE_EACH_ELEMENT(TRANSFUSE_CONV_TRANSPOSE_2D_SQUARE_INPUT_ASYM_KERNEL);

/* Transposed convolution 2D, channel softmax, bias, scaling, sigmoid
 *
 * A transposed convolution whose channels compete at every pixel: softmax over the channels, then a
 * second bias, a factor and a sigmoid.
 *
 * ## Tensors
 *
 *     input      (B, Ci, H, W)
 *     kernel     (Ci, Co, Kh, Kw)
 *     conv_bias  (Co)
 *     add_bias   (Co, 1, 1)
 *     output     (B, Co, Ho, Wo)
 *
 * ## Definition
 *
 * ```
 * y[b, co, oh, ow] = conv_bias[co] + sum over ci, kh, kw:
 *                    input[b, ci, ih, iw] * kernel[ci, co, kh, kw]
 *
 * where   oh = ih * stride_h - padding_h + kh     0 <= ih < H
 *         ow = iw * stride_w - padding_w + kw     0 <= iw < W
 *
 * s[b, co, oh, ow]      = exp(y[b, co, oh, ow]) / sum over c: exp(y[b, c, oh, ow])
 * output[b, co, oh, ow] = sigmoid((s[b, co, oh, ow] + add_bias[co]) * scaling_factor)
 *
 * sigmoid(t) = 1 / (1 + exp(-t))
 * Ho = (H - 1) * stride_h - 2 * padding_h + Kh + output_padding_h
 * Wo = (W - 1) * stride_w - 2 * padding_w + Kw + output_padding_w
 * ```
 *
 * ## Legal values
 *
 * - `batch_size` >= 0; channels, image, kernel and stride >= 1. Dilation and groups are 1.
 * - `padding` >= 0, and it leaves `Ho` >= 1 and `Wo` >= 1.
 * - 0 <= `output_padding` < `stride` on each axis. `scaling_factor` is any number.
 *
 * ## Numerics
 *
 * - Subtract the largest channel before `exp`, or large values overflow.
 * - A NaN or +inf in any channel of a pixel makes every channel of that pixel NaN, as does a pixel
 *   whose channels are all -inf. With one channel the softmax is 1 wherever `y` is finite.
 *
 * Origin: KernelBench level 2 problem 91.
 */
#define TRANSFUSE_CONV_TRANSPOSE2D_SOFTMAX_BIASADD_SCALING_SIGMOID(suffix, element)                \
    int transfuse_conv_transpose2d_softmax_biasadd_scaling_sigmoid_##suffix(                       \
        const element* input, const element* kernel, const element* conv_bias,                     \
        const element* add_bias, element* output, double scaling_factor, size_t batch_size,        \
        size_t in_channels, size_t out_channels, size_t height, size_t width, size_t kernel_h,     \
        size_t kernel_w, size_t stride_h, size_t stride_w, size_t padding_h, size_t padding_w,     \
        size_t output_padding_h, size_t output_padding_w)
TRANSFUSE_EACH_ELEMENT(TRANSFUSE_CONV_TRANSPOSE2D_SOFTMAX_BIASADD_SCALING_SIGMOID);

/* Average pool, transposed convolution 3D, clamp, spatial softmax, scale
 *
 * An average pool comes first, despite the name; the transposed convolution (no bias) reads the
 * pooled volume. Each channel is then clamped, turned into a distribution over space, and scaled.
 *
 * ## Tensors
 *
 *     input    (B, Ci, D, H, W)
 *     kernel   (Ci, Co, Kd, Kh, Kw)
 *     scale    (1, Co, 1, 1, 1)
 *     output   (B, Co, Do, Ho, Wo)
 *
 * ## Definition
 *
 * With `P = pool_kernel`; positions `i`, `o` and taps `k` stand for three coordinates each:
 *
 * ```
 * a[b, ci, i]      = (1 / P^3) * sum over 0 <= r < P per axis: input[b, ci, i * P + r]
 * y[b, co, o]      = sum over ci, k: a[b, ci, i] * kernel[ci, co, k]
 *                    where o = i * stride - padding + k per axis, i inside the pooled volume
 * z[b, co, o]      = min(max(y[b, co, o], clamp_min), clamp_max)
 * output[b, co, o] = scale[co] * exp(z[b, co, o]) / sum over all positions q: exp(z[b, co, q])
 * ```
 *
 * Sizes, for depth; height and width alike:
 *
 * ```
 * Dp = floor(D / P)          the last D - Dp * P planes are never read
 * Do = (Dp - 1) * stride_d - 2 * padding_d + Kd + output_padding_d
 * ```
 *
 * ## Legal values
 *
 * - `batch_size` >= 0; channels, kernel, stride and `pool_kernel` >= 1. Dilation and groups are 1.
 * - D, H, W >= `pool_kernel`; `padding` >= 0, and it leaves every output size >= 1.
 * - 0 <= `output_padding` < `stride` on each axis.
 * - `clamp_min` and `clamp_max` are any numbers; `clamp_min` > `clamp_max` makes every value
 *   `clamp_max`, and the softmax uniform: 1 / (Do * Ho * Wo).
 *
 * ## Numerics
 *
 * - NaN passes through the clamp, and one NaN makes its whole (sample, channel) NaN.
 * - An infinity is clamped like any other value, so finite bounds keep the softmax finite.
 *
 * Origin: KernelBench level 2 problem 38.
 */
#define TRANSFUSE_CONV_TRANSPOSE3D_AVGPOOL_CLAMP_SOFTMAX_MULTIPLY(suffix, element)                 \
    int transfuse_conv_transpose3d_avgpool_clamp_softmax_multiply_##suffix(                        \
        const element* input, const element* kernel, const element* scale, element* output,        \
        size_t batch_size, size_t in_channels, size_t out_channels, size_t depth, size_t height,   \
        size_t width, size_t kernel_d, size_t kernel_h, size_t kernel_w, size_t stride_d,          \
        size_t stride_h, size_t stride_w, size_t padding_d, size_t padding_h, size_t padding_w,    \
        size_t output_padding_d, size_t output_padding_h, size_t output_padding_w,                 \
        size_t pool_kernel, double clamp_min, double clamp_max)
TRANSFUSE_EACH_ELEMENT(TRANSFUSE_CONV_TRANSPOSE3D_AVGPOOL_CLAMP_SOFTMAX_MULTIPLY);

/* Transposed convolution 2D, batch norm, tanh, max pool, group norm
 *
 * A transposed convolution (no bias), batch norm, tanh, a 2 x 2 max pool, group norm.
 *
 * ## Tensors
 *
 *     input               (B, Ci, H, W)
 *     kernel              (Ci, Co, Kh, Kw), or (Ci, Co / groups, Kh, Kw)
 *     bn_weight, bn_bias  (Co)
 *     gn_weight, gn_bias  (Co)
 *     output              (B, Co, floor(Ho / 2), floor(Wo / 2))
 *
 * The kernel decides: with `Co` the convolution is dense and `groups` is only carried along; with
 * `Co / groups` and `groups` > 1 it runs in groups, where `ci` and `co` meet only if
 * `ci // (Ci / groups) == co // (Co / groups)`. Any other shape is an error.
 *
 * ## Definition
 *
 * ```
 * y[b, co, oh, ow] = sum over ci, kh, kw: input[b, ci, ih, iw] * kernel[ci, co, kh, kw]
 *                    (in groups: kernel[ci, co % (Co / groups), kh, kw])
 * where   oh = ih * stride_h - padding_h + kh     0 <= ih < H
 *         ow = iw * stride_w - padding_w + kw     0 <= iw < W
 *
 * t[b, co, oh, ow] = tanh((y - mean[co]) / sqrt(var[co] + 1e-5) * bn_weight[co] + bn_bias[co])
 * m[b, co, ph, pw] = max of t over oh in {2 ph, 2 ph + 1}, ow in {2 pw, 2 pw + 1}
 * output           = (m - mean[b, g]) / sqrt(var[b, g] + 1e-5) * gn_weight[co] + gn_bias[co]
 *
 * Ho = (H - 1) * stride_h - 2 * padding_h + Kh + output_padding_h
 * Wo = (W - 1) * stride_w - 2 * padding_w + Kw + output_padding_w
 * ```
 *
 * `mean[co]`, `var[co]` are taken over (B, Ho, Wo) of this batch's `y`; `mean[b, g]`, `var[b, g]` over
 * the pooled positions and channels of group `g = co // (Co / num_groups)`. Both variances divide by
 * the count (biased). No running statistics are read or kept.
 *
 * ## Legal values
 *
 * - `batch_size` >= 0; channels, image, kernel, stride, `groups` >= 1; dilation is 1.
 * - `padding` >= 0 with `Ho`, `Wo` >= 2; 0 <= `output_padding` < `stride` on each axis.
 * - `num_groups` divides `out_channels`. A grouped kernel: `groups` divides both channel counts.
 * - The pool floors: an odd last row or column is dropped, yet counts in the batch statistics.
 * - A NaN in `y` makes its channel NaN in every sample, and then each group holding that channel.
 *
 * Origin: KernelBench level 2 problem 11.
 *
 * A pointer does not tell its shape, so here the kernel is always the dense one: `groups` is >= 1 and
 * only carried along.
 */
#define TRANSFUSE_CONV_TRANSPOSE2D_BATCHNORM_TANH_MAXPOOL_GROUPNORM(suffix, element)               \
    int transfuse_conv_transpose2d_batchnorm_tanh_maxpool_groupnorm_##suffix(                      \
        const element* input, const element* kernel, const element* bn_weight,                     \
        const element* bn_bias, const element* gn_weight, const element* gn_bias, element* output, \
        size_t batch_size, size_t in_channels, size_t out_channels, size_t height, size_t width,   \
        size_t kernel_h, size_t kernel_w, size_t stride_h, size_t stride_w, size_t padding_h,      \
        size_t padding_w, size_t output_padding_h, size_t output_padding_w, size_t groups,         \
        size_t num_groups)
TRANSFUSE_EACH_ELEMENT(TRANSFUSE_CONV_TRANSPOSE2D_BATCHNORM_TANH_MAXPOOL_GROUPNORM);

/* Transposed convolution 3D, two max pools, channel sum
 *
 * A transposed convolution with bias, a max pool of 2, a max pool of 3, and the sum of all channels.
 *
 * ## Tensors
 *
 *     input      (B, Ci, D, H, W)
 *     kernel     (Ci, Co, Kd, Kh, Kw)
 *     conv_bias  (Co)
 *     output     (B, 1, Dq, Hq, Wq)
 *
 * ## Definition
 *
 * Positions `i`, `o`, `p`, `q` and taps `k`, `r` stand for three coordinates each:
 *
 * ```
 * y[b, co, o]     = conv_bias[co] + sum over ci, k: input[b, ci, i] * kernel[ci, co, k]
 *                   where o = i * stride - padding + k per axis, i inside the input
 * u[b, co, p]     = max over r in {0, 1}    per axis: y[b, co, 2 * p + r]
 * v[b, co, q]     = max over r in {0, 1, 2} per axis: u[b, co, 3 * q + r]
 * output[b, 0, q] = sum over co: v[b, co, q]
 * ```
 *
 * Sizes, for depth; height and width alike:
 *
 * ```
 * Do = (D - 1) * stride_d - 2 * padding_d + Kd
 * Dq = floor(floor(Do / 2) / 3) = floor(Do / 6)
 * ```
 *
 * ## Legal values
 *
 * - `batch_size` >= 0; channels, volume, kernel and stride >= 1.
 * - Dilation and groups are 1; there is no output padding.
 * - `padding` >= 0, and it leaves `Do`, `Ho` and `Wo` >= 6, so that both pools have a full window.
 *
 * ## Numerics
 *
 * - Both pools floor: what does not fill a window of 6 is dropped, with whatever it holds.
 * - A NaN inside a window is its maximum, and so reaches the sum. Do not start the maximum from 0:
 *   a window may be negative throughout.
 * - -inf in one channel and +inf in another sum to NaN.
 *
 * Origin: KernelBench level 2 problem 78.
 */
#define TRANSFUSE_CONV_TRANSPOSE3D_MAX_MAX_SUM(suffix, element)                                    \
    int transfuse_conv_transpose3d_max_max_sum_##suffix(                                           \
        const element* input, const element* kernel, const element* conv_bias, element* output,    \
        size_t batch_size, size_t in_channels, size_t out_channels, size_t depth, size_t height,   \
        size_t width, size_t kernel_d, size_t kernel_h, size_t kernel_w, size_t stride_d,          \
        size_t stride_h, size_t stride_w, size_t padding_d, size_t padding_h, size_t padding_w)
TRANSFUSE_EACH_ELEMENT(TRANSFUSE_CONV_TRANSPOSE3D_MAX_MAX_SUM);

#ifdef __cplusplus
}
#endif
#endif
