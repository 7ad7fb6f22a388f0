// A library in the core's place, for TRANSFUSE_CORE: it computes nothing. Each call goes to the core
// of another machine, which runs emulated, with all the memory that its pointers lead to; what that
// core wrote comes back. So the tests run as they are, and torch is not emulated.
#include <fcntl.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <mutex>

#include "core.h"
#include "wire.h"

namespace {

[[noreturn]] void lost(const char* what) {
    std::fprintf(stderr, "the emulated core: %s\n", what);
    std::abort();
}

// The emulated process. Its standard input ends with this process, and so does it.
class Emulated {
  public:
    Emulated() {
        int down[2], up[2];
        if (pipe2(down, O_CLOEXEC) || pipe2(up, O_CLOEXEC)) lost("no pipe");
        const pid_t child = fork();
        if (child < 0) lost("no process");
        if (!child) {
            dup2(down[0], STDIN_FILENO);
            dup2(up[1], STDOUT_FILENO);
            execlp("qemu-aarch64", "qemu-aarch64", "-L", "/usr/aarch64-linux-gnu", SERVE, nullptr);
            std::perror("qemu-aarch64");
            _exit(127);
        }
        close(down[0]), close(up[1]);
        to = down[1], from = up[0];
    }

    Frame ask(const Frame& request) {
        const std::lock_guard<std::mutex> alone(turn);
        Frame answer;
        if (!request.send(to) || !answer.receive(from)) lost("it has ended");
        return answer;
    }

  private:
    int to, from;
    std::mutex turn;
};

Frame ask(const Frame& request) {
    static Emulated emulated;
    return emulated.ask(request);
}

Frame request(Function function) {
    Frame frame;
    frame.put(function);
    return frame;
}

// Code and its numbers; operands come with a run.
void put_code(Frame& frame, const transfuse_code* code) {
    frame.put(code != nullptr);
    if (!code) return;
    frame.put(*code);
    frame.put(code->numbers, size_t(code->numbers_count) * sizeof *code->numbers);
    frame.put(code->instructions, size_t(code->length) * sizeof *code->instructions);
}

void put_steps(Frame& frame, const transfuse_step* steps, int32_t count) {
    for (int32_t i = 0; i < count; i++) frame.put(steps[i]);
    for (int32_t i = 0; i < count; i++)
        if (steps[i].op == TF_MAP) put_code(frame, steps[i].map ? &steps[i].map->code : nullptr);
}

Frame request(Function function, const transfuse_program& program) {
    Frame frame = request(function);
    frame.put(program);
    put_steps(frame, program.before, program.before_count);
    put_steps(frame, program.steps, program.steps_count);
    return frame;
}

thread_local std::string message;

// What an answer begins with: the function's result, and why where it is `failure`.
template <class T> T result(Frame& answer, T failure) {
    const T found = answer.get<T>();
    if (found == failure) message = answer.get_text();
    return found;
}

size_t size_of(int32_t element) { return element == TF_F64 ? 8 : element == TF_F32 ? 4 : 2; }

// Bytes from a tensor's first element to its last.
size_t span(int32_t element, const int64_t* sizes, const int64_t* strides, int axes = 5) {
    int64_t last = 0;
    for (int i = 0; i < axes; i++) {
        if (!sizes[i]) return 0;
        last += (sizes[i] - 1) * strides[i];
    }
    return size_t(last + 1) * size_of(element);
}

// Memory that views lead to: what overlaps is one, so that a view may be another's memory there, too.
class Regions {
  public:
    void add(const void* from, size_t size) {
        if (from) all.push_back({static_cast<const char*>(from), static_cast<const char*>(from) + size});
    }
    void put(Frame& frame) {
        std::sort(all.begin(), all.end());
        std::vector<Region> merged;
        for (const Region& each : all)
            if (!merged.empty() && each.first < merged.back().second)
                merged.back().second = std::max(merged.back().second, each.second);
            else
                merged.push_back(each);
        all = merged;
        frame.put(all.size());
        for (const Region& each : all) frame.put_memory(each.first, size_t(each.second - each.first));
    }
    // Which region an address lies in, and where.
    void put(Frame& frame, const void* address) const {
        const char* at = static_cast<const char*>(address);
        size_t i = 0;
        while (i < all.size() && !(all[i].first <= at && (at < all[i].second || at == all[i].first))) i++;
        frame.put(i);
        frame.put(i < all.size() ? size_t(at - all[i].first) : size_t(0));
    }
    void get(Frame& frame) const {
        for (const Region& each : all) {
            const size_t size = size_t(each.second - each.first);
            std::memcpy(const_cast<char*>(each.first), frame.take(size), size);
        }
    }

  private:
    typedef std::pair<const char*, const char*> Region;
    std::vector<Region> all;
};

// The sizes after a step; one that is no window has a window of 1.
void pass(int64_t (&sizes)[5], const transfuse_step& step) {
    if (step.op == TF_SUM) sizes[1] = 1;
    for (int i = 0; i < 3; i++)
        sizes[2 + i] = (sizes[2 + i] + 2 * step.padding[i] - step.kernel[i]) / step.stride[i] + 1;
}

// The tensors of a step that sees values of these sizes.
void put_operands(Frame& frame, const transfuse_step& step, int32_t element, const int64_t* sizes) {
    const size_t line = size_t(sizes[1]) * size_of(element);
    for (const void* tensor : {step.t0, step.t1, step.t2, step.t3}) frame.put_memory(tensor, line);
    for (int k = 0; step.op == TF_MAP && k < step.map->code.operands_count; k++) {
        const transfuse_operand& operand = step.map->operands[k];
        frame.put(operand);
        frame.put_memory(operand.data, span(operand.element, sizes, operand.strides));
    }
}

}  // namespace

extern "C" {

const char* transfuse_message(void) { return message.c_str(); }

#define TEXT(name)                            \
    const char* name(void) {                  \
        static thread_local std::string text; \
        Frame frame = request(Function::TEXT); \
        frame.put_text(#name);                \
        text = ask(frame).get_text();         \
        return text.c_str();                  \
    }
TEXT(transfuse_abi)
TEXT(transfuse_isa)
TEXT(transfuse_isas)

int transfuse_use_isa(const char* name) {
    Frame frame = request(Function::USE_ISA);
    frame.put_text(name ? name : "");
    Frame answer = ask(frame);
    return result(answer, 1);
}

int64_t transfuse_packed_bytes(const transfuse_program* program) {
    Frame answer = ask(request(Function::PACKED_BYTES, *program));
    return result<int64_t>(answer, -1);
}

int transfuse_copies(const transfuse_program* program, double* times) {
    Frame answer = ask(request(Function::COPIES, *program));
    if (result(answer, 1)) return 1;
    for (int i = 0; i < 2; i++) times[i] = answer.get<double>();
    return 0;
}

int transfuse_pack(const transfuse_program* program, const void* weights, const int64_t* strides, int32_t threads, void* to) {
    const transfuse_program& p = *program;
    const int64_t packed = transfuse_packed_bytes(program);
    if (packed < 0) return 1;  // a program that the core refuses says nothing about memory
    const int64_t sizes[5] = {p.in_channels, p.out_channels / p.groups, p.kernel[0], p.kernel[1], p.kernel[2]};
    Frame frame = request(Function::PACK, p);
    for (int i = 0; i < 5; i++) frame.put(strides[i]);
    frame.put(threads);
    frame.put_memory(weights, span(p.element, sizes, strides));
    frame.put_memory(to, size_t(packed));
    Frame answer = ask(frame);
    if (result(answer, 1)) return 1;
    std::memcpy(to, answer.take(size_t(packed)), size_t(packed));
    return 0;
}

int transfuse_digest(const void* data, int64_t bytes, int32_t threads, uint64_t* found) {
    Frame frame = request(Function::DIGEST);
    frame.put(threads);
    frame.put_memory(data, size_t(bytes));
    Frame answer = ask(frame);
    if (result(answer, 1)) return 1;
    for (int i = 0; i < 2; i++) found[i] = answer.get<uint64_t>();
    return 0;
}

int transfuse_finite(const void* values, int64_t count, int32_t element) {
    Frame frame = request(Function::FINITE);
    frame.put(element);
    frame.put_memory(values, size_t(count) * size_of(element));
    Frame answer = ask(frame);
    return result(answer, -1);
}

int transfuse_decide(const transfuse_program* program, int32_t* cuts) {
    Frame frame = request(Function::DECIDE, *program);
    frame.put(int32_t(cuts != nullptr));
    Frame answer = ask(frame);
    if (result(answer, 1)) return 1;
    for (int32_t i = 0; i < program->steps_count; i++) cuts[i] = answer.get<int32_t>();
    return 0;
}

// `seconds` is null where nobody asks how long a pass takes.
static int run(const transfuse_program* program, int32_t threads, double* seconds) {
    const transfuse_program& p = *program;
    const int64_t packed = transfuse_packed_bytes(program);
    if (packed < 0) return 1;
    int64_t sizes[5] = {p.batch, p.in_channels, p.spatial[0], p.spatial[1], p.spatial[2]};
    Frame frame = request(Function::RUN, p);
    frame.put(threads);
    frame.put(int32_t(seconds != nullptr));
    frame.put_memory(p.input, span(p.input_element, sizes, p.input_strides));
    frame.put_memory(p.weights, size_t(packed));
    for (int32_t i = 0; i < p.before_count; i++) {
        put_operands(frame, p.before[i], p.operands, sizes);
        pass(sizes, p.before[i]);
    }
    sizes[1] = p.out_channels;
    for (int i = 0; i < 3; i++)
        sizes[2 + i] = (sizes[2 + i] - 1) * p.stride[i] - 2 * p.padding[i] +
                       p.dilation[i] * (p.kernel[i] - 1) + p.output_padding[i] + 1;
    std::vector<size_t> moments;  // bytes, by the step
    for (int32_t i = 0; i < p.steps_count; i++) {
        const transfuse_step& step = p.steps[i];
        put_operands(frame, step, p.operands, sizes);
        frame.put_memory(step.moments, moments.emplace_back(size_t(sizes[1]) * 2 * sizeof(double)));
        pass(sizes, step);
    }
    const size_t written = span(p.output_element, sizes, p.output_strides);
    frame.put_memory(p.output, written);
    Frame answer = ask(frame);
    if (result(answer, 1)) return 1;
    std::memcpy(p.output, answer.take(written), written);
    for (int32_t i = 0; i < p.steps_count; i++)
        if (p.steps[i].moments) std::memcpy(p.steps[i].moments, answer.take(moments[i]), moments[i]);
    for (int32_t i = 0; seconds && i < p.steps_count + 2; i++) seconds[i] = answer.get<double>();
    return 0;
}

int transfuse_run(const transfuse_program* program, int32_t threads) { return run(program, threads, nullptr); }

int transfuse_run_timed(const transfuse_program* program, int32_t threads, double* seconds) {
    return run(program, threads, seconds);
}

int transfuse_run_unless_changed(const transfuse_program* program, int32_t threads, const void* data,
                                 int64_t bytes, const uint64_t* digest) {
    uint64_t found[2];
    if (transfuse_digest(data, bytes, threads, found)) return 1;
    if (found[0] != digest[0] || found[1] != digest[1]) return 2;
    return transfuse_run(program, threads);
}

int transfuse_sweep_run(const transfuse_sweep* sweep, int32_t threads) {
    const transfuse_sweep& s = *sweep;
    Frame frame = request(Function::SWEEP);
    frame.put(s);
    frame.put(threads);
    put_code(frame, s.before);
    put_code(frame, s.after);
    int64_t inner[TF_AXES], results[TF_AXES];
    std::copy(s.sizes, s.sizes + TF_AXES, inner);
    std::copy(s.sizes, s.sizes + TF_AXES, results);
    if (s.kind == TF_FOLD && s.joined > 1) results[s.kept - 1] /= s.joined;
    if (s.kind == TF_SLIDE) std::copy(s.inputs, s.inputs + 3, inner + 2);
    Regions regions;
    std::vector<const transfuse_view*> views;
    const auto add = [&](const transfuse_view& view, const int64_t* sizes, int axes) {
        regions.add(view.data, span(view.element, sizes, view.strides, axes));
        views.push_back(&view);
    };
    for (const transfuse_view& each : s.outs) add(each, results, s.kept);
    for (int32_t i = 0; i < s.values_count; i++) add(s.values[i], inner, s.kept + s.folded);
    for (int32_t i = 0; i < s.others_count; i++) add(s.others[i], results, s.kept);
    regions.put(frame);
    for (const transfuse_view* each : views) {
        frame.put(*each);
        regions.put(frame, each->data);
    }
    Frame answer = ask(frame);
    const int status = result(answer, 1);
    if (!status) regions.get(answer);
    return status;
}

int transfuse_winners_run(const transfuse_winners* winners, int32_t threads) {
    const transfuse_winners& w = *winners;
    const auto bytes = [&](int64_t count, const int64_t* n) {
        return size_t(count * n[0] * n[1] * n[2]) * size_of(w.element);
    };
    const int64_t one[3] = {1, 1, 1};
    const size_t inputs = bytes(w.batch * w.in_channels, w.spatial);
    const size_t weights = bytes(w.in_channels / w.groups * w.out_channels, w.kernel);
    Frame frame = request(Function::WINNERS);
    frame.put(w);
    frame.put(threads);
    frame.put_memory(w.gradient, bytes(w.batch * w.out_channels, w.windows));
    frame.put_memory(w.values, bytes(w.batch * w.out_channels, w.outputs));
    frame.put_memory(w.bias, bytes(w.out_channels, one));
    frame.put_memory(w.input, inputs);
    frame.put_memory(w.weights, weights);
    frame.put_memory(w.by_input, inputs);
    frame.put_memory(w.by_weights, weights);
    Frame answer = ask(frame);
    if (result(answer, 1)) return 1;
    if (w.by_input) std::memcpy(w.by_input, answer.take(inputs), inputs);
    if (w.by_weights) std::memcpy(w.by_weights, answer.take(weights), weights);
    return 0;
}

}  // extern "C"
