// The five problems over plain pointers: sizes checked as problem.py and the stages check them,
// with the same words; then the steps of the rewritten chain, packed weights, one run.
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "core.h"
#include "failure.h"
#include "transfuse.h"
#include "validate.h"

namespace {

typedef std::vector<size_t> Given;
typedef std::vector<int64_t> Sizes;
typedef std::vector<transfuse_step> Steps;

int64_t product(const Sizes& sizes) {
    int64_t all = 1;
    for (int64_t size : sizes) all *= size;
    return all;
}

int64_t elements(const std::string& name, const Sizes& dims) {
    return ::elements(name.c_str(), dims.data(), dims.size());
}

transfuse_step step(int op, const void* t0 = nullptr, const void* t1 = nullptr, double f0 = 0,
                    double f1 = 0, int64_t i0 = 0) {
    return {op, i0, {1, 1, 1}, {1, 1, 1}, {0, 0, 0}, f0, f1, t0, t1, nullptr, nullptr, nullptr, nullptr};
}

void append(Steps& steps, const Steps& more) {
    steps.insert(steps.end(), more.begin(), more.end());
}

struct Geometry {
    size_t batch, in_channels, out_channels;
    Given spatial, kernel, stride, padding, output_padding, dilation = {};
    size_t groups = 1;
};

// One call: checked from the outside in, then run.
class Call {
  public:
    Sizes shape;  // of the values so far: batch, channels, one size per axis

    Call(int element, const Geometry& g)
        : rank(int(g.spatial.size())), conv("conv_transpose" + std::to_string(rank) + "d") {
        p.element = p.input_element = p.output_element = p.operands = element;
        p.weight_scale = 1;
        p.groups = checked("groups", 1, {g.groups})[0];
        p.batch = checked("batch", 0, {g.batch})[0];
        p.in_channels = checked("in_channels", 1, {g.in_channels})[0];
        p.out_channels = checked("out_channels", 1, {g.out_channels})[0];
        axes(p.spatial, checked("spatial size", 1, g.spatial), 1);
        axes(p.kernel, checked("kernel", 1, g.kernel), 1);
        axes(p.stride, checked("stride", 1, g.stride), 1);
        axes(p.padding, checked("padding", 0, g.padding), 0);
        axes(p.dilation, checked("dilation", 1, g.dilation), 1);
        axes(p.output_padding, checked("output_padding", 0, g.output_padding), 0);
        divided("in_channels", p.in_channels);
        divided("out_channels", p.out_channels);
        for (int a = 3 - rank; a < 3; a++) {
            const int64_t bound = std::max(p.stride[a], p.dilation[a]);
            if (p.output_padding[a] >= bound)
                refuse(conv, ": output_padding must be smaller than either stride or dilation",
                       ", but ", AXES[a], " has output_padding=", p.output_padding[a], ", stride=",
                       p.stride[a], ", dilation=", p.dilation[a], "; legal: 0 to ", bound - 1);
        }
        shape = dims(p.batch, p.in_channels, p.spatial);
        inputs = elements("input", shape);
        weights = elements("kernel", dims(p.in_channels, p.out_channels / p.groups, p.kernel));
        const Sizes kernel(p.kernel + 3 - rank, p.kernel + 3);
        if (product(kernel) > LARGEST)
            refuse(conv, ": kernel of shape ", kernel, " has ", product(kernel), " taps, more than ", LARGEST,
                   " (2^31 - 1)");
    }

    // Windows of `size` along every axis, side by side; what fills none is dropped.
    void pool(const char* name, size_t size) {
        const Sizes before(shape.begin() + 2, shape.end());
        if (size < 1)
            refuse(name, ": kernel and stride must be at least 1, but got kernel=0, stride=0");
        for (int64_t n : before)
            if (size_t(n) < size)
                refuse(name, ": input of size ", before, " is smaller than a window of ", size,
                       "; output size would be (", n, " + 2*0 - ", size, ") // ", size, " + 1 = 0");
        for (int a = 0; a < rank; a++) shape[2 + a] /= int64_t(size);
    }

    void convolve() {
        for (int i = 0, a = 3 - rank; a < 3; i++, a++) {
            const int64_t n = shape[2 + i], k = p.kernel[a], s = p.stride[a], d = p.dilation[a];
            const int64_t full = (n - 1) * s + d * (k - 1) + p.output_padding[a] + 1;
            const int64_t size = full - 2 * p.padding[a];
            if (size < 1)
                refuse(conv, " would give an empty output: ", AXES[a], " (", n, "-1)*", s, " - 2*",
                       p.padding[a], " + ", d, "*(", k, "-1) + ", p.output_padding[a], " + 1 = ",
                       size, "; padding may be at most ", (full - 1) / 2, " here");
            shape[2 + i] = size;
        }
        shape[1] = p.out_channels;
        elements(conv + " output", shape);
    }

    void more_than_one_value(const char* name, int64_t groups) const {
        if (product(shape) / groups == 1)
            refuse(name, ": expected more than 1 value per channel, got an input of ", shape);
    }

    void group_norm(size_t groups) const {
        if (groups < 1) refuse("group_norm: num_groups must be at least 1, but got ", groups);
        if (groups > size_t(LARGEST) || shape[1] % int64_t(groups))
            refuse("group_norm: num_groups=", groups, " does not divide the ", shape[1],
                   " channels");
        more_than_one_value("group_norm", int64_t(groups));
    }

    transfuse_step window(int op, int64_t size, const void* sign = nullptr, double f0 = 0) const {
        transfuse_step s = step(op, sign, nullptr, f0);
        for (int a = 3 - rank; a < 3; a++) s.kernel[a] = s.stride[a] = size;
        return s;
    }

    void pool_input(const transfuse_step& s) {
        p.pooled = 1;
        p.pool = s;
    }

    // Every pointer is there, and the output has memory of its own.
    void tensors(const void* input, const void* kernel, void* output,
                 std::vector<std::pair<const char*, const void*>> operands = {}) {
        struct Range {
            const char* name;
            const void* data;
            int64_t count;
            uintptr_t at() const { return reinterpret_cast<uintptr_t>(data); }
        };
        const Range out = {"output", output, product(shape)};
        std::vector<Range> all = {{"input", input, inputs}, {"kernel", kernel, weights}};
        for (const auto& each : operands) all.push_back({each.first, each.second, p.out_channels});
        for (const Range& each : all)
            if (each.count && !each.data) refuse(each.name, " is a null pointer");
        if (out.count && !out.data) refuse("output is a null pointer");
        for (const Range& each : all)
            if (each.count && out.count && each.at() < out.at() + out.count * bytes() &&
                out.at() < each.at() + each.count * bytes())
                refuse("output shares memory with ", each.name,
                       "; pass a tensor of its own memory");
        p.input = input;
        weight = kernel;
        p.output = output;
    }

    bool finite(const void* data) const { return finite(data, p.out_channels); }

    // Bytes of one value in the arithmetic of the element type.
    int64_t computed() const { return p.element == TF_F64 ? 8 : 4; }

    // The cut before a statistic is applied: the values are stored, or computed again where that
    // costs less by the rates of plan.py's "cpu", 177 (in double 88) GFLOP/s and 20 GB/s.
    transfuse_step cut(int64_t read) const {
        const double taps = double(p.kernel[0] * p.kernel[1] * p.kernel[2]);
        const double flops = 2.0 * double(read) * double(p.out_channels) * taps;
        const double again = double(read + weights), stored = 2.0 * double(product(shape));
        const double rate = p.element == TF_F64 ? 88e9 : 177e9;
        const bool recompute = flops / rate + double(computed()) * (again - stored) / 2e10 < 0;
        return step(TF_CUT, nullptr, nullptr, 0, 0, recompute);
    }

    void run(const Steps& steps) {
        if (!p.batch) return;
        p.careful = !finite(weight, weights);
        p.steps_count = int32_t(steps.size());
        p.steps = steps.data();
        contiguous(dims(p.batch, p.in_channels, p.spatial), p.input_strides);
        contiguous(shape, p.output_strides);
        int64_t strides[5] = {};
        contiguous(dims(p.in_channels, p.out_channels / p.groups, p.kernel), strides);
        const int64_t size = transfuse_packed_bytes(&p);
        succeed(size < 0);
        void* memory = std::aligned_alloc(64, size_t(size + 63) / 64 * 64);
        const std::unique_ptr<void, void (*)(void*)> packed(memory, std::free);
        if (!packed) throw std::bad_alloc();
        succeed(transfuse_pack(&p, weight, strides, packed.get()));
        p.weights = packed.get();
        succeed(transfuse_run(&p, omp_get_max_threads()));
    }

  private:
    static constexpr const char* AXES[3] = {"depth", "height", "width"};
    const int rank;
    const std::string conv;
    transfuse_program p = {};
    const void* weight = nullptr;
    int64_t inputs, weights;  // elements

    Sizes checked(const char* name, size_t least, const Given& given) const {
        const auto must = [&](const char* rule, size_t bound) {
            refuse(conv, ": ", name, " must be ", rule, bound, ", but got ", name, "=", given);
        };
        for (size_t value : given)
            if (value < least) must("at least ", least);
        for (size_t value : given)
            if (value > size_t(LARGEST)) must("at most ", size_t(LARGEST));
        return Sizes(given.begin(), given.end());
    }

    void divided(const char* name, int64_t channels) const {
        if (channels % p.groups)
            refuse(conv, ": groups=", p.groups, " does not divide ", name, "=", channels);
    }

    // Two sizes, then those of the axes there are.
    Sizes dims(int64_t first, int64_t second, const int64_t (&space)[3]) const {
        Sizes all = {first, second};
        all.insert(all.end(), space + 3 - rank, space + 3);
        return all;
    }

    // Missing axes come first; an option that is not given has its default everywhere.
    static void axes(int64_t (&to)[3], const Sizes& from, int64_t missing) {
        std::fill(to, to + 3, missing);
        std::copy(from.begin(), from.end(), to + 3 - from.size());
    }

    // Strides of a tensor; those of missing axes do not matter.
    static void contiguous(const Sizes& dims, int64_t (&strides)[5]) {
        int64_t stride = 1;
        for (int axis = 4, i = int(dims.size()); i-- > 0; axis--) {
            if (i == 1) axis = 1;
            strides[axis] = stride;
            stride *= dims[i];
        }
    }

    static void succeed(int status) {
        if (status) throw std::runtime_error(transfuse_message());
    }

    int64_t bytes() const { return p.element == TF_F64 ? 8 : p.element == TF_F32 ? 4 : 2; }

    bool finite(const void* data, int64_t count) const {
        return transfuse_finite(data, count, p.element) == 1;
    }
};

}  // namespace

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
    Call call(element, {batch_size, in_channels, out_channels, {height, width},
                        {kernel_h, kernel_w}, {stride_h, stride_w}, {padding_h, padding_w},
                        {output_padding_h, output_padding_w}, {dilation_h, dilation_w}, groups});
    call.convolve();
    call.tensors(input, kernel, output);
    call.run({});
})

DEFINE(TRANSFUSE_CONV_TRANSPOSE2D_SOFTMAX_BIASADD_SCALING_SIGMOID, {
    Call call(element, {batch_size, in_channels, out_channels, {height, width},
                        {kernel_h, kernel_w}, {stride_h, stride_w}, {padding_h, padding_w},
                        {output_padding_h, output_padding_w}});
    call.convolve();
    call.tensors(input, kernel, output, {{"conv_bias", conv_bias}, {"add_bias", add_bias}});
    call.run({step(TF_ADD, conv_bias), step(TF_SOFTMAX), step(TF_ADD, add_bias),
              step(TF_SCALE, nullptr, nullptr, scaling_factor), step(TF_SIGMOID)});
})

DEFINE(TRANSFUSE_CONV_TRANSPOSE3D_AVGPOOL_CLAMP_SOFTMAX_MULTIPLY, {
    Call call(element, {batch_size, in_channels, out_channels, {depth, height, width},
                        {kernel_d, kernel_h, kernel_w}, {stride_d, stride_h, stride_w},
                        {padding_d, padding_h, padding_w},
                        {output_padding_d, output_padding_h, output_padding_w}});
    call.pool("avg_pool", pool_kernel);
    const int64_t pooled = product(call.shape);
    call.convolve();
    call.tensors(input, kernel, output, {{"scale", scale}});
    const double cells = double(pool_kernel) * double(pool_kernel) * double(pool_kernel);
    call.pool_input(call.window(TF_SUM_POOL, int64_t(pool_kernel), nullptr, 1 / cells));
    // bounded-softmax: within 40 of 0, nothing is taken off the exponents.
    const auto within = [](double bound) { return std::abs(bound) <= 40; };
    const bool bounded = within(clamp_max) && (clamp_min > clamp_max || within(clamp_min));
    call.run({step(TF_CLAMP, nullptr, nullptr, clamp_min, clamp_max),
              step(bounded ? TF_EXP_STATS : TF_MAX_STATS),
              call.cut(pooled), step(bounded ? TF_EXP_APPLY : TF_MAX_APPLY),
              step(TF_SCALE, scale)});
})

DEFINE(TRANSFUSE_CONV_TRANSPOSE2D_BATCHNORM_TANH_MAXPOOL_GROUPNORM, {
    if (groups < 1) refuse("groups must be at least 1, but got groups=", groups);
    Call call(element, {batch_size, in_channels, out_channels, {height, width},
                        {kernel_h, kernel_w}, {stride_h, stride_w}, {padding_h, padding_w},
                        {output_padding_h, output_padding_w}});
    const int64_t inputs = product(call.shape);
    call.convolve();
    call.more_than_one_value("batch_norm", int64_t(out_channels));
    call.pool("max_pool", 2);
    call.group_norm(num_groups);
    call.tensors(input, kernel, output, {{"bn_weight", bn_weight}, {"bn_bias", bn_bias},
                                         {"gn_weight", gn_weight}, {"gn_bias", gn_bias}});
    const double eps = 1e-5;
    const transfuse_step norm = step(TF_BATCH_APPLY, bn_weight, bn_bias, eps);
    const transfuse_step cut = call.cut(inputs);
    Steps steps = {step(TF_BATCH_STATS)};
    // pool-before-batch-norm and pool-before-monotone, for weight and bias that are finite.
    if (call.finite(bn_weight) && call.finite(bn_bias))
        append(steps, {call.window(TF_SIGN_POOL, 2, bn_weight), cut, norm, step(TF_TANH)});
    else
        append(steps, {cut, norm, step(TF_TANH), call.window(TF_MAX_POOL, 2)});
    const int64_t parts = int64_t(num_groups);
    const int64_t scope = product(call.shape) / std::max<int64_t>(1, call.shape[0]) / parts;
    // plan.py: from stored values, one program takes a statistic that it can hold for itself.
    if (!cut.i0 && scope * call.computed() <= 512000)
        append(steps, {step(TF_GROUP_NORM, gn_weight, gn_bias, eps, 0, parts)});
    else
        append(steps, {step(TF_GROUP_STATS, nullptr, nullptr, 0, 0, parts),
                       step(TF_CUT, nullptr, nullptr, 0, 0, 1),
                       step(TF_GROUP_APPLY, gn_weight, gn_bias, eps, 0, parts)});
    call.run(steps);
})

DEFINE(TRANSFUSE_CONV_TRANSPOSE3D_MAX_MAX_SUM, {
    Call call(element, {batch_size, in_channels, out_channels, {depth, height, width},
                        {kernel_d, kernel_h, kernel_w}, {stride_d, stride_h, stride_w},
                        {padding_d, padding_h, padding_w}, {}});
    call.convolve();
    call.pool("max_pool", 2);
    call.pool("max_pool", 3);
    call.shape[1] = 1;
    call.tensors(input, kernel, output, {{"conv_bias", conv_bias}});
    // merge-max-pools; bias-after-max-pool for a bias that is finite.
    Steps steps = {call.window(TF_MAX_POOL, 6), step(TF_ADD, conv_bias), step(TF_SUM)};
    if (!call.finite(conv_bias)) std::swap(steps[0], steps[1]);
    call.run(steps);
})
