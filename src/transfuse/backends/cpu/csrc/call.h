// One call of a C function: its sizes are checked as problem.py and the stages check them, with the same
// words; then weights are packed, and its steps run once.
#pragma once
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <list>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "core.h"
#include "failure.h"
#include "validate.h"

namespace {

typedef std::vector<size_t> Given;
typedef std::vector<int64_t> Sizes;

int64_t product(const Sizes& sizes) {
    int64_t all = 1;
    for (int64_t size : sizes) all *= size;
    return all;
}

int64_t elements(const std::string& name, const Sizes& dims) {
    return ::elements(name.c_str(), dims.data(), dims.size());
}

// The smaller and the larger of two numbers, NaN where either is.
[[maybe_unused]] double smaller(double a, double b) { return a < b || a != a ? a : b; }
[[maybe_unused]] double larger(double a, double b) { return a > b || a != a ? a : b; }

struct Geometry {
    size_t batch, in_channels, out_channels;
    Given spatial, kernel, stride, padding, output_padding, dilation;
    size_t groups;
};

// A tensor of the call; its elements follow each other.
struct Tensor {
    const char* name;
    const void* data;
    size_t count;
    uintptr_t at() const { return reinterpret_cast<uintptr_t>(data); }
};

// A window along one axis.
struct Window {
    size_t kernel, stride, padding;
    template <class K, class S, class P>
    Window(K k, S s, P p) : kernel(size_t(k)), stride(size_t(s)), padding(size_t(p)) {}
};
typedef std::vector<Window> Windows;

// A step, said field by field.
struct Step : transfuse_step {
    explicit Step(int operation) : transfuse_step{} {
        op = operation;
        for (int a = 0; a < 3; a++) kernel[a] = stride[a] = 1;
    }
    Step& count(int64_t number) { return i0 = number, *this; }
    Step& numbers(double first, double second = 0) { return f0 = first, f1 = second, *this; }
    Step& tensors(const void* a, const void* b = nullptr, const void* c = nullptr, const void* d = nullptr) {
        return t0 = a, t1 = b, t2 = c, t3 = d, *this;
    }
    Step& code(const transfuse_map* given) { return map = given, *this; }
    Step& windows(const Windows& given) {  // missing axes come first, and a window of 1 leaves them alone
        for (size_t i = 0, a = 3 - given.size(); a < 3; i++, a++) {
            kernel[a] = int64_t(given[i].kernel);
            stride[a] = int64_t(given[i].stride);
            padding[a] = int64_t(given[i].padding);
        }
        return *this;
    }
};
typedef std::vector<Step> Steps;

class Call {
  public:
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

    // ---- what each stage asks of the values before it, in the order of the chain ----------------

    void max_pool(const Windows& windows) { pool("max_pool", windows, true); }
    void avg_pool(const Windows& windows) { pool("avg_pool", windows, rank < 3); }

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

    void batch_norm() const { more_than_one_value("batch_norm", shape[1]); }

    void group_norm(size_t groups) const {
        if (groups < 1) refuse("group_norm: num_groups must be at least 1, but got ", groups);
        if (groups > size_t(LARGEST) || shape[1] % int64_t(groups))
            refuse("group_norm: num_groups=", groups, " does not divide the ", shape[1],
                   " channels");
        more_than_one_value("group_norm", int64_t(groups));
    }

    void sum() { shape[1] = 1; }

    // Every pointer is there, and the output has memory of its own.
    void tensors(const char* input_name, const void* input, const char* kernel_name, const void* kernel,
                 const std::vector<Tensor>& operands, const char* output_name, void* output) {
        const Tensor out = {output_name, output, size_t(product(shape))};
        std::vector<Tensor> all = {{input_name, input, size_t(inputs)}, {kernel_name, kernel, size_t(weights)}};
        all.insert(all.end(), operands.begin(), operands.end());
        for (const Tensor& each : all)
            if (each.count && !each.data) refuse(each.name, " is a null pointer");
        if (out.count && !out.data) refuse(out.name, " is a null pointer");
        for (const Tensor& each : all)
            if (each.count && out.count && each.at() < out.at() + out.count * bytes() &&
                out.at() < each.at() + each.count * bytes())
                refuse(out.name, " shares memory with ", each.name,
                       "; pass a tensor of its own memory");
        p.input = input;
        weight = kernel;
        p.output = output;
    }

    // ---- what is run ----------------------------------------------------------------------------

    bool finite(const std::vector<Tensor>& operands) const {
        for (const Tensor& each : operands)
            if (!finite(each.data, int64_t(each.count))) return false;
        return true;
    }

    // A pointwise expression, kept until the call is done; its operands have one value per channel.
    const transfuse_map* map(std::vector<double> numbers, const std::vector<const void*>& operands, int registers,
                             std::vector<transfuse_instruction> instructions) {
        maps.push_back({{}, std::move(numbers), {}, std::move(instructions)});
        Map& m = maps.back();
        for (const void* each : operands) m.operands.push_back({p.element, each, {0, 1, 0, 0, 0}});
        m.map.code.numbers_count = int32_t(m.numbers.size());
        m.map.code.operands_count = int32_t(m.operands.size());
        m.map.code.registers_count = registers;
        m.map.code.length = int32_t(m.instructions.size());
        m.map.code.numbers = m.numbers.data();
        m.map.code.instructions = m.instructions.data();
        m.map.operands = m.operands.data();
        return &m.map;
    }

    void before(const Steps& steps) { first.assign(steps.begin(), steps.end()); }

    void scale_weights(double factor) { p.weight_scale = factor; }

    void run(const Steps& steps) {
        if (!p.batch) return;
        const std::vector<transfuse_step> plain(steps.begin(), steps.end());
        p.careful = !finite(weight, weights);
        p.before_count = int32_t(first.size());
        p.before = first.data();
        p.steps_count = int32_t(plain.size());
        p.steps = plain.data();
        contiguous(dims(p.batch, p.in_channels, p.spatial), p.input_strides);
        contiguous(shape, p.output_strides);
        int64_t strides[5] = {};
        contiguous(dims(p.in_channels, p.out_channels / p.groups, p.kernel), strides);
        const int64_t size = transfuse_packed_bytes(&p);
        succeed(size < 0);
        void* memory = std::aligned_alloc(64, size_t(size + 63) / 64 * 64);
        const std::unique_ptr<void, void (*)(void*)> packed(memory, std::free);
        if (!packed) throw std::bad_alloc();
        succeed(transfuse_pack(&p, weight, strides, omp_get_max_threads(), packed.get()));
        p.weights = packed.get();
        succeed(transfuse_run(&p, omp_get_max_threads()));
    }

  private:
    struct Map {
        transfuse_map map;
        std::vector<double> numbers;
        std::vector<transfuse_operand> operands;
        std::vector<transfuse_instruction> instructions;
    };

    static constexpr const char* AXES[3] = {"depth", "height", "width"};
    const int rank;
    const std::string conv;
    Sizes shape;  // of the values so far: batch, channels, one size per axis
    transfuse_program p = {};
    const void* weight = nullptr;
    int64_t inputs, weights;  // elements
    std::list<Map> maps;
    std::vector<transfuse_step> first;  // before the convolution

    // What fills no window is dropped. `padded`: whether padding may make up for inputs.
    void pool(const char* name, const Windows& windows, bool padded) {
        const Sizes before(shape.begin() + 2, shape.end());
        for (int i = 0; i < rank; i++) {
            const Window& w = windows[i];
            const int64_t n = before[i];
            if (w.kernel < 1 || w.stride < 1)
                refuse(name, ": kernel and stride must be at least 1, but got kernel=", w.kernel, ", stride=",
                       w.stride);
            if (w.padding > w.kernel / 2)
                refuse(name, ": padding must be 0 to ", w.kernel / 2, " (half of kernel=", w.kernel,
                       "), but got padding=", w.padding);
            if (!padded && size_t(n) < w.kernel)
                refuse(name, ": input of size ", before, " is smaller than a window of ", w.kernel,
                       "; in three dimensions padding=", w.padding, " does not count, as in torch");
            const __int128 rest = __int128(n) + 2 * __int128(w.padding) - __int128(w.kernel);
            const int64_t size = int64_t((rest - (rest < 0 ? __int128(w.stride) - 1 : 0)) / __int128(w.stride) + 1);
            if (size < 1)
                refuse(name, ": input of size ", before, " is smaller than a window of ", w.kernel,
                       "; output size would be (", n, " + 2*", w.padding, " - ", w.kernel, ") // ", w.stride,
                       " + 1 = ", size);
            shape[2 + i] = size;
        }
        elements(std::string(name) + " output", shape);
    }

    void more_than_one_value(const char* name, int64_t groups) const {
        if (product(shape) / groups == 1)
            refuse(name, ": expected more than 1 value per channel, got an input of ", shape);
    }

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

    size_t bytes() const { return p.element == TF_F64 ? 8 : p.element == TF_F32 ? 4 : 2; }

    bool finite(const void* data, int64_t count) const {
        return transfuse_finite(data, count, p.element) == 1;
    }
};

}  // namespace
