/* transfuse from C: five fused transposed convolutions over plain pointers.
 *
 * Every function gives 0, or 1 with transfuse_message() saying why, with the numbers in it. Refused
 * arguments leave the output untouched; memory that runs out half-way may leave it partly written.
 *
 * Tensors are contiguous, the last axis innermost, and have the shapes in the comments: B samples,
 * Ci and Co channels, a kernel of Kd x Kh x Kw. The output may not overlap an input. A batch of 0
 * succeeds, and its input and output may then be null. No size may exceed 2^31 - 1, nor the taps of a
 * kernel; no tensor 2^48 elements. `transfuse show SLUG` prints the whole definition.
 *
 * Element types, by the ending of the name: f32 float, f64 double, f16 IEEE half and bf16 bfloat16
 * as their 16 bits. Both 16-bit types compute in float and round once, to nearest even.
 *
 * Threads: as many as OpenMP gives, OMP_NUM_THREADS or all cores; any number gives the same bits.
 * Any thread may call at any time; nothing is kept between calls but each thread's message. */
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

/* y = convT(x, w)
 *
 * input (B, Ci, H, W), kernel (Ci, Co / groups, Kh, Kw), output (B, Co, Ho, Wo) with
 * Ho = (H - 1) * stride_h - 2 * padding_h + dilation_h * (Kh - 1) + output_padding_h + 1. */
#define TRANSFUSE_CONV_TRANSPOSE_2D_SQUARE_INPUT_ASYM_KERNEL(suffix, element)                      \
    int transfuse_conv_transpose_2d_square_input_asym_kernel_##suffix(                             \
        const element* input, const element* kernel, element* output, size_t batch_size,           \
        size_t in_channels, size_t out_channels, size_t height, size_t width, size_t kernel_h,     \
        size_t kernel_w, size_t stride_h, size_t stride_w, size_t padding_h, size_t padding_w,     \
        size_t output_padding_h, size_t output_padding_w, size_t dilation_h, size_t dilation_w,    \
        size_t groups)
TRANSFUSE_EACH_ELEMENT(TRANSFUSE_CONV_TRANSPOSE_2D_SQUARE_INPUT_ASYM_KERNEL);

/* y = sigmoid((softmax_C(convT(x, w) + conv_bias) + add_bias) * scaling_factor)
 *
 * input (B, Ci, H, W), kernel (Ci, Co, Kh, Kw), conv_bias and add_bias (Co), output (B, Co, Ho, Wo)
 * with Ho = (H - 1) * stride_h - 2 * padding_h + Kh + output_padding_h. */
#define TRANSFUSE_CONV_TRANSPOSE2D_SOFTMAX_BIASADD_SCALING_SIGMOID(suffix, element)                \
    int transfuse_conv_transpose2d_softmax_biasadd_scaling_sigmoid_##suffix(                       \
        const element* input, const element* kernel, const element* conv_bias,                     \
        const element* add_bias, element* output, double scaling_factor, size_t batch_size,        \
        size_t in_channels, size_t out_channels, size_t height, size_t width, size_t kernel_h,     \
        size_t kernel_w, size_t stride_h, size_t stride_w, size_t padding_h, size_t padding_w,     \
        size_t output_padding_h, size_t output_padding_w)
TRANSFUSE_EACH_ELEMENT(TRANSFUSE_CONV_TRANSPOSE2D_SOFTMAX_BIASADD_SCALING_SIGMOID);

/* y = softmax_DHW(clamp(convT(avg_pool(x), w), clamp_min, clamp_max)) * scale
 *
 * input (B, Ci, D, H, W), kernel (Ci, Co, Kd, Kh, Kw), scale (Co), output (B, Co, Do, Ho, Wo) with
 * Do = (floor(D / pool_kernel) - 1) * stride_d - 2 * padding_d + Kd + output_padding_d. */
#define TRANSFUSE_CONV_TRANSPOSE3D_AVGPOOL_CLAMP_SOFTMAX_MULTIPLY(suffix, element)                 \
    int transfuse_conv_transpose3d_avgpool_clamp_softmax_multiply_##suffix(                        \
        const element* input, const element* kernel, const element* scale, element* output,        \
        size_t batch_size, size_t in_channels, size_t out_channels, size_t depth, size_t height,   \
        size_t width, size_t kernel_d, size_t kernel_h, size_t kernel_w, size_t stride_d,          \
        size_t stride_h, size_t stride_w, size_t padding_d, size_t padding_h, size_t padding_w,    \
        size_t output_padding_d, size_t output_padding_h, size_t output_padding_w,                 \
        size_t pool_kernel, double clamp_min, double clamp_max)
TRANSFUSE_EACH_ELEMENT(TRANSFUSE_CONV_TRANSPOSE3D_AVGPOOL_CLAMP_SOFTMAX_MULTIPLY);

/* y = group_norm(max_pool2(tanh(batch_norm(convT(x, w)))))
 *
 * input (B, Ci, H, W), kernel (Ci, Co, Kh, Kw), the four norm vectors (Co), output
 * (B, Co, floor(Ho / 2), floor(Wo / 2)) with
 * Ho = (H - 1) * stride_h - 2 * padding_h + Kh + output_padding_h. A pointer does not tell its
 * shape, so here the kernel is always the dense one: `groups` is >= 1 and only carried along. */
#define TRANSFUSE_CONV_TRANSPOSE2D_BATCHNORM_TANH_MAXPOOL_GROUPNORM(suffix, element)               \
    int transfuse_conv_transpose2d_batchnorm_tanh_maxpool_groupnorm_##suffix(                      \
        const element* input, const element* kernel, const element* bn_weight,                     \
        const element* bn_bias, const element* gn_weight, const element* gn_bias, element* output, \
        size_t batch_size, size_t in_channels, size_t out_channels, size_t height, size_t width,   \
        size_t kernel_h, size_t kernel_w, size_t stride_h, size_t stride_w, size_t padding_h,      \
        size_t padding_w, size_t output_padding_h, size_t output_padding_w, size_t groups,         \
        size_t num_groups)
TRANSFUSE_EACH_ELEMENT(TRANSFUSE_CONV_TRANSPOSE2D_BATCHNORM_TANH_MAXPOOL_GROUPNORM);

/* y = sum_C(max_pool3(max_pool2(convT(x, w) + conv_bias)))
 *
 * input (B, Ci, D, H, W), kernel (Ci, Co, Kd, Kh, Kw), conv_bias (Co), output
 * (B, 1, floor(Do / 6), floor(Ho / 6), floor(Wo / 6)) with
 * Do = (D - 1) * stride_d - 2 * padding_d + Kd. */
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
