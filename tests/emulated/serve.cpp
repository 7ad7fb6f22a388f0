// The emulated side: one call after another is read, made on this machine's core with copies of the
// memory that came along, and answered.
#include <dlfcn.h>

#include <algorithm>
#include <memory>

#include "core.h"
#include "wire.h"

namespace {

// A copy of the other side's memory, aligned alike, with bytes around it that must stay.
class Copy {
  public:
    explicit Copy(Frame& frame) : size(frame.get<size_t>()) {
        const size_t off = frame.get<size_t>();
        there = frame.get<bool>();
        memory.assign(size + 2 * AROUND + 2 * LINE, MARK);
        const uintptr_t first = reinterpret_cast<uintptr_t>(memory.data()) + AROUND;
        at = memory.data() + AROUND + (LINE + off - first % LINE) % LINE;
        if (there) std::memcpy(at, frame.take(size), size);
    }
    Copy(const Copy&) = delete;

    char* data() const { return there ? at : nullptr; }
    bool intact() const {
        for (const char* p = memory.data(); p < memory.data() + memory.size(); p++)
            if (*p != MARK && (p < at || p >= at + size)) return false;
        return true;
    }

    const size_t size;

  private:
    static constexpr size_t AROUND = 1024;
    static constexpr char MARK = 0x5a;
    bool there;
    std::vector<char> memory;
    char* at;
};

struct GivenCode {
    transfuse_code code;
    std::vector<double> numbers;
    std::vector<transfuse_instruction> instructions;

    explicit GivenCode(Frame& frame)
        : code(frame.get<transfuse_code>()), numbers(code.numbers_count), instructions(code.length) {
        const size_t bytes = numbers.size() * sizeof(double), length = instructions.size() * sizeof instructions[0];
        std::memcpy(numbers.data(), frame.take(bytes), bytes);
        std::memcpy(instructions.data(), frame.take(length), length);
        code.numbers = numbers.data(), code.instructions = instructions.data();
    }
    GivenCode(const GivenCode&) = delete;
};

// A map whose operands lead nowhere yet: they are there, and nobody looks at them before a run.
struct GivenMap {
    GivenCode code;
    transfuse_map map;
    std::vector<transfuse_operand> operands;

    explicit GivenMap(Frame& frame) : code(frame), operands(code.code.operands_count, transfuse_operand{0, this, {}}) {
        map = {code.code, operands.data()};
    }
    GivenMap(const GivenMap&) = delete;
};

// Steps whose pointers lead nowhere yet.
struct GivenSteps {
    std::vector<transfuse_step> steps;
    std::vector<std::unique_ptr<GivenMap>> maps;  // by the step

    GivenSteps(Frame& frame, int32_t count) {
        for (int32_t i = 0; i < count; i++) steps.push_back(frame.get<transfuse_step>());
        for (transfuse_step& step : steps) {
            const bool mapped = step.op == TF_MAP && frame.get<bool>();
            maps.push_back(mapped ? std::make_unique<GivenMap>(frame) : nullptr);
            step.map = mapped ? &maps.back()->map : nullptr;
        }
    }

    // The tensors of step i, kept among `operands`.
    void take(Frame& frame, size_t i, std::vector<std::unique_ptr<Copy>>& operands) {
        transfuse_step& step = steps[i];
        for (const void** tensor : {&step.t0, &step.t1, &step.t2, &step.t3}) {
            operands.push_back(std::make_unique<Copy>(frame));
            *tensor = operands.back()->data();
        }
        for (size_t k = 0; maps[i] && k < maps[i]->operands.size(); k++) {
            transfuse_operand& operand = maps[i]->operands[k] = frame.get<transfuse_operand>();
            operands.push_back(std::make_unique<Copy>(frame));
            operand.data = operands.back()->data();
        }
    }
};

// A program whose pointers lead nowhere yet.
struct Given {
    transfuse_program program;
    GivenSteps before, after;

    explicit Given(Frame& frame)
        : program(frame.get<transfuse_program>()), before(frame, program.before_count), after(frame, program.steps_count) {
        program.before = before.steps.data();
        program.steps = after.steps.data();
        program.input = program.weights = program.output = nullptr;
    }
};

// A function's result, and why where it is `failure`.
template <class T> void put_result(Frame& answer, T found, T failure) {
    answer.put(found);
    if (found == failure) answer.put_text(transfuse_message());
}

// A status, then the memory that the core wrote to, there and nowhere else.
void put_written(Frame& answer, int status, const Copy& written) {
    if (!status && !written.intact()) {
        answer.put(1);
        answer.put_text("the emulated core wrote outside its result");
        return;
    }
    put_result(answer, status, 1);
    if (!status) answer.put(written.data(), written.size);
}

void text(Frame& request, Frame& answer) {
    const std::string name = request.get_text();
    void* found = dlsym(RTLD_DEFAULT, name.c_str());
    if (!found) throw std::runtime_error("the core has no " + name);
    answer.put_text(reinterpret_cast<const char* (*)()>(found)());
}

void packed_bytes(Frame& request, Frame& answer) {
    const Given given(request);
    put_result<int64_t>(answer, transfuse_packed_bytes(&given.program), -1);
}

void copies(Frame& request, Frame& answer) {
    const Given given(request);
    double times[2] = {};
    put_result(answer, transfuse_copies(&given.program, times), 1);
    for (double each : times) answer.put(each);
}

void pack(Frame& request, Frame& answer) {
    Given given(request);
    int64_t strides[5];
    for (int64_t& stride : strides) stride = request.get<int64_t>();
    const int32_t threads = request.get<int32_t>();
    const Copy weights(request), to(request);
    put_written(answer, transfuse_pack(&given.program, weights.data(), strides, threads, to.data()), to);
}

void digest(Frame& request, Frame& answer) {
    const int32_t threads = request.get<int32_t>();
    const Copy data(request);
    uint64_t found[2] = {};
    put_result(answer, transfuse_digest(data.data(), int64_t(data.size), threads, found), 1);
    for (uint64_t each : found) answer.put(each);
}

void finite(Frame& request, Frame& answer) {
    const int32_t element = request.get<int32_t>();
    const Copy values(request);
    const size_t each = element == TF_F64 ? 8 : element == TF_F32 ? 4 : 2;
    put_result(answer, transfuse_finite(values.data(), int64_t(values.size / each), element), -1);
}

void decide(Frame& request, Frame& answer) {
    const Given given(request);
    const bool wanted = request.get<int32_t>();
    std::vector<int32_t> cuts(given.after.steps.size());
    put_result(answer, transfuse_decide(&given.program, wanted ? cuts.data() : nullptr), 1);
    for (int32_t each : cuts) answer.put(each);
}

void run(Frame& request, Frame& answer) {
    Given given(request);
    const int32_t threads = request.get<int32_t>();
    const bool timed = request.get<int32_t>();
    const Copy input(request), weights(request);
    std::vector<std::unique_ptr<Copy>> operands;
    std::vector<const Copy*> moments;
    for (size_t i = 0; i < given.before.steps.size(); i++) given.before.take(request, i, operands);
    for (size_t i = 0; i < given.after.steps.size(); i++) {
        transfuse_step& step = given.after.steps[i];
        given.after.take(request, i, operands);
        operands.push_back(std::make_unique<Copy>(request));
        step.moments = reinterpret_cast<double*>(operands.back()->data());
        if (step.moments) moments.push_back(operands.back().get());
    }
    const Copy output(request);
    given.program.input = input.data();
    given.program.weights = weights.data();
    given.program.output = output.data();
    std::vector<double> seconds(given.after.steps.size() + 2);
    const int status = timed ? transfuse_run_timed(&given.program, threads, seconds.data())
                             : transfuse_run(&given.program, threads);
    put_written(answer, status, output);
    for (const Copy* each : moments) answer.put(each->data(), each->size);
    for (size_t i = 0; timed && i < seconds.size(); i++) answer.put(seconds[i]);
}

void winners(Frame& request, Frame& answer) {
    transfuse_winners w = request.get<transfuse_winners>();
    const int32_t threads = request.get<int32_t>();
    const Copy gradient(request), values(request), bias(request), input(request), weights(request);
    const Copy by_input(request), by_weights(request);
    w.gradient = gradient.data(), w.values = values.data(), w.bias = bias.data();
    w.input = input.data(), w.weights = weights.data();
    w.by_input = by_input.data(), w.by_weights = by_weights.data();
    int status = transfuse_winners_run(&w, threads);
    if (!status && !(by_input.intact() && by_weights.intact())) {
        answer.put(1);
        answer.put_text("the emulated core wrote outside its results");
        return;
    }
    put_result(answer, status, 1);
    for (const Copy* each : {&by_input, &by_weights})
        if (!status && each->data()) answer.put(each->data(), each->size);
}

void sweep(Frame& request, Frame& answer) {
    transfuse_sweep s = request.get<transfuse_sweep>();
    const int32_t threads = request.get<int32_t>();
    std::unique_ptr<GivenCode> before, after;
    if (request.get<bool>()) before = std::make_unique<GivenCode>(request);
    if (request.get<bool>()) after = std::make_unique<GivenCode>(request);
    s.before = before ? &before->code : nullptr, s.after = after ? &after->code : nullptr;
    std::vector<std::unique_ptr<Copy>> copies(request.get<size_t>());
    for (auto& each : copies) each = std::make_unique<Copy>(request);
    std::vector<transfuse_view> outs(2), values(s.values_count), others(s.others_count);
    for (auto* views : {&outs, &values, &others})
        for (transfuse_view& view : *views) {
            view = request.get<transfuse_view>();
            const size_t which = request.get<size_t>(), offset = request.get<size_t>();
            view.data = which < copies.size() ? copies[which]->data() + offset : nullptr;
        }
    std::copy(outs.begin(), outs.end(), s.outs);
    s.values = values.data(), s.others = others.data();
    int status = transfuse_sweep_run(&s, threads);
    std::string why = transfuse_message();
    for (const auto& each : copies)
        if (!each->intact()) status = 1, why = "the emulated core wrote outside its tensors";
    answer.put(status);
    if (status) answer.put_text(why);
    for (const auto& each : copies) answer.put(each->data(), each->size);
}

Frame answered(Frame& request) {
    Frame answer;
    switch (request.get<Function>()) {
        case Function::TEXT: text(request, answer); break;
        case Function::USE_ISA: put_result(answer, transfuse_use_isa(request.get_text().c_str()), 1); break;
        case Function::PACKED_BYTES: packed_bytes(request, answer); break;
        case Function::COPIES: copies(request, answer); break;
        case Function::PACK: pack(request, answer); break;
        case Function::DIGEST: digest(request, answer); break;
        case Function::FINITE: finite(request, answer); break;
        case Function::DECIDE: decide(request, answer); break;
        case Function::RUN: run(request, answer); break;
        case Function::SWEEP: sweep(request, answer); break;
        case Function::WINNERS: winners(request, answer); break;
    }
    return answer;
}

}  // namespace

int main() {
    Frame request;
    while (request.receive(STDIN_FILENO))
        if (!answered(request).send(STDOUT_FILENO)) return 1;
}
