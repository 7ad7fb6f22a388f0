// The C functions of the named operators. Written by `make generate` from their documents and declarations:
// checks as the stages make them, then the steps of the rewritten chain.
#include "call.h"
#include "transfuse.h"

// The four functions of a problem from one body, in which `element` is the type at hand.
#define DEFINE_AS(PROBLEM, suffix, type, number, ...) \
    PROBLEM(suffix, type) {                           \
        constexpr int element = number;               \
        return guarded([&] __VA_ARGS__);              \
    }
#define DEFINE(PROBLEM, ...)                                 \
    DEFINE_AS(PROBLEM, f32, float, TF_F32, __VA_ARGS__)      \
    DEFINE_AS(PROBLEM, f64, double, TF_F64, __VA_ARGS__)     \
    DEFINE_AS(PROBLEM, f16, uint16_t, TF_F16, __VA_ARGS__)   \
    DEFINE_AS(PROBLEM, bf16, uint16_t, TF_BF16, __VA_ARGS__)

DEFINE(TRANSFUSE_CONV_TRANSPOSE_2D_SQUARE_INPUT_ASYM_KERNEL, {
    Call call(element, {batch_size, in_channels, out_channels, {height, width}, {kernel_h, kernel_w},
        {stride_h, stride_w}, {padding_h, padding_w}, {output_padding_h, output_padding_w},
        {dilation_h, dilation_w}, groups});
    call.convolve();
    call.tensors("input", input, "kernel", kernel, {}, "output", output);
    call.run({});
})

DEFINE(TRANSFUSE_CONV_TRANSPOSE2D_SOFTMAX_BIASADD_SCALING_SIGMOID, {
    Call call(element, {batch_size, in_channels, out_channels, {height, width}, {kernel_h, kernel_w},
        {stride_h, stride_w}, {padding_h, padding_w}, {output_padding_h, output_padding_w}, {}, 1});
    call.convolve();
    const std::vector<Tensor> operands = {{"conv_bias", conv_bias, out_channels},
        {"add_bias", add_bias, out_channels}};
    call.tensors("input", input, "kernel", kernel, operands, "output", output);
    call.run({
        Step(TF_ADD).tensors(conv_bias),
        Step(TF_SOFTMAX),
        Step(TF_ADD).tensors(add_bias),
        Step(TF_SCALE).numbers(scaling_factor),
        Step(TF_SIGMOID),
    });
})

DEFINE(TRANSFUSE_CONV_TRANSPOSE3D_AVGPOOL_CLAMP_SOFTMAX_MULTIPLY, {
    Call call(element, {batch_size, in_channels, out_channels, {depth, height, width},
        {kernel_d, kernel_h, kernel_w}, {stride_d, stride_h, stride_w}, {padding_d, padding_h, padding_w},
        {output_padding_d, output_padding_h, output_padding_w}, {}, 1});
    call.avg_pool(Windows(3, {pool_kernel, pool_kernel, 0}));
    call.convolve();
    const std::vector<Tensor> operands = {{"scale", scale, out_channels}};
    call.tensors("input", input, "kernel", kernel, operands, "output", output);
    const bool finite = call.finite(operands);
    if (!finite || !(int64_t(pool_kernel * pool_kernel * pool_kernel) > 1) ||
        ((pool_kernel * pool_kernel * pool_kernel) & (int64_t(pool_kernel * pool_kernel * pool_kernel) - 1))
        != 0)
        call.before({Step(TF_SUM_POOL).numbers(1.0 /
            double(pool_kernel * pool_kernel * pool_kernel)).windows(Windows(3,
            {pool_kernel, pool_kernel, 0}))});
    else
        call.before({Step(TF_SUM_POOL).numbers(1.0).windows(Windows(3, {pool_kernel, pool_kernel, 0}))});
    if (finite && int64_t(pool_kernel * pool_kernel * pool_kernel) > 1 &&
        ((pool_kernel * pool_kernel * pool_kernel) & (int64_t(pool_kernel * pool_kernel * pool_kernel) - 1))
        == 0)
        call.scale_weights(1.0 / double(pool_kernel * pool_kernel * pool_kernel));
    if (smaller(clamp_min, clamp_max) >= -40.0 && clamp_max <= 40.0)
        call.run({
            Step(TF_CLAMP).numbers(clamp_min, clamp_max),
            Step(TF_EXP_STATS),
            Step(TF_CUT).count(TF_DECIDE),
            Step(TF_EXP_APPLY),
            Step(TF_SCALE).tensors(scale),
        });
    else
        call.run({
            Step(TF_CLAMP).numbers(clamp_min, clamp_max),
            Step(TF_MAX_STATS),
            Step(TF_CUT).count(TF_DECIDE),
            Step(TF_MAX_APPLY),
            Step(TF_SCALE).tensors(scale),
        });
})

DEFINE(TRANSFUSE_CONV_TRANSPOSE2D_BATCHNORM_TANH_MAXPOOL_GROUPNORM, {
    if (groups < 1) refuse("groups must be at least 1, but got groups=", groups);
    Call call(element, {batch_size, in_channels, out_channels, {height, width}, {kernel_h, kernel_w},
        {stride_h, stride_w}, {padding_h, padding_w}, {output_padding_h, output_padding_w}, {}, 1});
    call.convolve();
    call.batch_norm();
    call.max_pool(Windows(2, {2, 2, 0}));
    call.group_norm(num_groups);
    const std::vector<Tensor> operands = {{"bn_weight", bn_weight, out_channels},
        {"bn_bias", bn_bias, out_channels}, {"gn_weight", gn_weight, out_channels},
        {"gn_bias", gn_bias, out_channels}};
    call.tensors("input", input, "kernel", kernel, operands, "output", output);
    const bool finite = call.finite(operands);
    if (finite)
        call.run({
            Step(TF_BATCH_STATS),
            Step(TF_SIGN_POOL).tensors(bn_weight).windows(Windows(2, {2, 2, 0})),
            Step(TF_CUT).count(TF_DECIDE),
            Step(TF_BATCH_APPLY).numbers(1e-05).tensors(bn_weight, bn_bias),
            Step(TF_TANH),
            Step(TF_GROUP_STATS).count(num_groups),
            Step(TF_CUT).count(TF_DECIDE),
            Step(TF_GROUP_APPLY).count(num_groups).numbers(1e-05).tensors(gn_weight, gn_bias),
        });
    else
        call.run({
            Step(TF_BATCH_STATS),
            Step(TF_CUT).count(TF_DECIDE),
            Step(TF_BATCH_APPLY).numbers(1e-05).tensors(bn_weight, bn_bias),
            Step(TF_MAX_POOL).windows(Windows(2, {2, 2, 0})),
            Step(TF_TANH),
            Step(TF_GROUP_STATS).count(num_groups),
            Step(TF_CUT).count(TF_DECIDE),
            Step(TF_GROUP_APPLY).count(num_groups).numbers(1e-05).tensors(gn_weight, gn_bias),
        });
})

DEFINE(TRANSFUSE_CONV_TRANSPOSE3D_MAX_MAX_SUM, {
    Call call(element, {batch_size, in_channels, out_channels, {depth, height, width},
        {kernel_d, kernel_h, kernel_w}, {stride_d, stride_h, stride_w}, {padding_d, padding_h, padding_w}, {},
        {}, 1});
    call.convolve();
    call.max_pool(Windows(3, {2, 2, 0}));
    call.max_pool(Windows(3, {3, 3, 0}));
    call.sum();
    const std::vector<Tensor> operands = {{"conv_bias", conv_bias, out_channels}};
    call.tensors("input", input, "kernel", kernel, operands, "output", output);
    const bool finite = call.finite(operands);
    if (finite)
        call.run({
            Step(TF_MAX_POOL).windows(Windows(3, {6, 6, 0})),
            Step(TF_ADD).tensors(conv_bias),
            Step(TF_SUM),
        });
    else
        call.run({
            Step(TF_ADD).tensors(conv_bias),
            Step(TF_MAX_POOL).windows(Windows(3, {6, 6, 0})),
            Step(TF_SUM),
        });
})
