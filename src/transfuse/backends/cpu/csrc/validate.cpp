#include "validate.h"

#include <algorithm>

#include "failure.h"

namespace {

typedef __int128 Wide;  // where a sum or product of two checked numbers may leave 64 bits

constexpr int KINDS = TF_CUT - TF_BATCH_STATS;  // of statistics
static_assert(TF_MAX_APPLY - TF_BATCH_APPLY + 1 == KINDS, "a step that gathers for each that applies");

void within(const char* name, int64_t value, int64_t least, int64_t most) {
    if (value < least || value > most) refuse(name, " must be ", least, " to ", most, ", but got ", value);
}

void present(const char* name, const void* address) {
    if (!address) refuse(name, " is a null pointer");
}

void addressable(const char* name, const Values& v) {
    const int64_t dims[] = {v.batch, v.channels, v.extents[0], v.extents[1], v.extents[2]};
    elements(name, dims, 5);
}

void divides(const char* name, int64_t groups, int64_t channels) {
    if (groups < 1 || channels % groups) refuse(groups, " groups do not divide the ", channels, " ", name);
}

void pool(Values& values, const transfuse_step& s) {
    for (int a = 0; a < 3; a++) {
        within("kernel of a pool", s.kernel[a], 1, WIDEST);
        within("stride of a pool", s.stride[a], 1, INT64_MAX);
        within("padding of a pool", s.padding[a], 0, s.kernel[a] / 2);
        const int64_t rest = values.extents[a] + 2 * s.padding[a] - s.kernel[a];
        if (rest < 0)
            refuse("a pool's window of ", s.kernel[a], " with padding ", s.padding[a], " is larger than the ",
                   values.extents[a], " values of an axis");
        values.extents[a] = rest / s.stride[a] + 1;
    }
    addressable("a pool's output", values);
}

void convolve(Values& values, const transfuse_program& p) {
    for (int a = 0; a < 3; a++) {
        within("stride", p.stride[a], 1, LARGEST);
        within("padding", p.padding[a], -LARGEST, LARGEST);
        within("dilation", p.dilation[a], 1, LARGEST);
        within("output_padding", p.output_padding[a], -FARTHEST, FARTHEST);
        const Wide size = Wide(values.extents[a] - 1) * p.stride[a] + Wide(p.kernel[a] - 1) * p.dilation[a] -
                          2 * p.padding[a] + p.output_padding[a] + 1;
        if (size < 1 || size > MOST)
            refuse("the convolution's output has a size of less than 1 or more than 2^48: (", values.extents[a],
                   "-1)*", p.stride[a], " - 2*", p.padding[a], " + ", p.dilation[a], "*(", p.kernel[a], "-1) + ",
                   p.output_padding[a], " + 1");
        values.extents[a] = int64_t(size);
    }
    values.channels = p.out_channels;
    addressable("the convolution's output", values);
}

// Whether windows read values that others read, too, or lie beyond the first one.
bool overlaps(const transfuse_step& s) {
    bool found = false;
    for (int a = 0; a < 3; a++) found = found || s.stride[a] < s.kernel[a] || s.padding[a];
    return found;
}

// Statistics are gathered in one segment and applied in a later one, to as many channels.
class Statistics {
  public:
    void step(int op, int64_t channels) {
        if (op == TF_CUT) {
            for (Kind& kind : kinds) kind.ready = kind.ready || kind.gathered;
            gathering = false;
        } else if (op >= TF_BATCH_STATS && op < TF_CUT) {
            kinds[op - TF_BATCH_STATS] = {true, false, false, channels};
            gathering = true;
        } else if (op >= TF_BATCH_APPLY && op <= TF_MAX_APPLY) {
            Kind& kind = kinds[op - TF_BATCH_APPLY];
            if (!kind.ready || kind.channels != channels)
                refuse("step ", op, " applies a statistic that no earlier segment gathered for ", channels,
                       " channels");
            kind.applied = true;
        }
    }
    bool in_segment() const { return gathering; }
    void end() const {
        for (const Kind& kind : kinds)
            if (kind.gathered && !kind.applied) refuse("a statistic is gathered and never applied");
    }

  private:
    struct Kind {
        bool gathered, ready, applied;
        int64_t channels;
    };
    Kind kinds[KINDS] = {};
    bool gathering = false;
};

// Code that reads and writes nothing but the values it numbers, and leaves the running value last.
void code(const transfuse_code& c) {
    within("numbers of a map", c.numbers_count, 0, UINT16_MAX);
    within("operands of a map", c.operands_count, 0, UINT8_MAX);
    within("registers of a map", c.registers_count, 0, TF_REGISTERS);
    within("instructions of a map", c.length, 1, INT32_MAX);
    if (c.numbers_count) present("numbers of a map", c.numbers);
    present("code of a map", c.instructions);
    const int first = 1 + c.numbers_count + c.operands_count;  // register
    for (int i = 0; i < c.length; i++) {
        const transfuse_instruction& each = c.instructions[i];
        within("primitive of a map", each.primitive, 0, TF_PRIMITIVES - 1);
        for (int k = 0; k < 3; k++) within("source of an instruction", each.from[k], 0, first + c.registers_count - 1);
        if (i + 1 == c.length)
            within("target of a map's last instruction", each.to, 0, 0);
        else
            within("target of an instruction", each.to, first, first + c.registers_count - 1);
    }
}

// Offsets in bytes stay in int64, and nothing lies before a tensor's first element.
void offsets(const char* name, const int64_t* sizes, int count, const int64_t* strides) {
    Wide last = 0;
    for (int i = 0; i < count; i++)
        if (sizes[i] > 1) {
            within(name, strides[i], 0, WIDEST);
            last += Wide(sizes[i] - 1) * strides[i];
        }
    if (last > WIDEST / 8) refuse(name, " lead beyond 2^62 bytes");
}
void offsets(const char* name, const int64_t (&sizes)[5], const int64_t* strides) { offsets(name, sizes, 5, strides); }

void map(const transfuse_map* m, const Values& v) {
    present("map of a step", m);
    code(m->code);
    if (m->code.operands_count) present("operands of a map", m->operands);
    for (int i = 0; i < m->code.operands_count; i++) {
        within("element of a map's operand", m->operands[i].element, 0, TF_ELEMENTS - 1);
        present("operand of a map", m->operands[i].data);
        offsets("strides of a map's operand", {v.batch, v.channels, v.extents[0], v.extents[1], v.extents[2]},
                m->operands[i].strides);
    }
}

void before_steps(const transfuse_program& p, Values& values) {
    within("before_count", p.before_count, 0, INT32_MAX);
    if (p.before_count) present("steps before the convolution", p.before);
    bool pooled = false;
    for (int32_t i = 0; i < p.before_count; i++) {
        const transfuse_step& s = p.before[i];
        if (s.op == TF_MAP) {
            map(s.map, values);
        } else if ((s.op == TF_MAX_POOL || s.op == TF_SUM_POOL) && !pooled) {
            pool(values, s);
            pooled = true;
        } else {
            refuse("operation ", s.op, " cannot come before the convolution: it is no map", pooled ? ", and not the one pool" : " and no pool");
        }
    }
}

void after_steps(const transfuse_program& p, Values values, std::vector<Values>& all) {
    within("steps_count", p.steps_count, 0, INT32_MAX);
    if (p.steps_count) present("steps", p.steps);
    Statistics statistics;
    for (int32_t i = 0; i < p.steps_count; i++) {
        const transfuse_step& s = p.steps[i];
        within("operation of a step", s.op, 0, TF_OPS - 1);
        statistics.step(s.op, values.channels);
        switch (s.op) {
            case TF_MAX_POOL:
            case TF_SUM_POOL:
            case TF_SIGN_POOL:
                if (statistics.in_segment() && overlaps(s))
                    refuse("windows overlap where a statistic is gathered before them");
                pool(values, s);
                break;
            case TF_MAP: map(s.map, values); break;
            case TF_NORM:
                present("running mean of a norm", s.t2);
                present("running variance of a norm", s.t3);
                break;
            case TF_GROUP_STATS:
            case TF_GROUP_APPLY:
            case TF_GROUP_NORM: divides("channels of a norm", s.i0, values.channels); break;
            case TF_SUM: values.channels = 1; break;
            case TF_CUT: within("what becomes of the values at a cut", s.i0, TF_STORE, TF_DECIDE); break;
        }
        all.push_back(values);
    }
    statistics.end();
}

// Tensors have the type of the weights, or float32 beside 16 bits.
void beside(const char* name, int32_t type, int32_t element) {
    if (type != element && !(type == TF_F32 && (element == TF_F16 || element == TF_BF16)))
        refuse(name, " of type ", type, " do not go with values of type ", element);
}

// ---- sweeps ------------------------------------------------------------------------------------

void view(const char* name, const transfuse_view& v, const int64_t* sizes, int axes) {
    within("element of a view", v.element, 0, TF_ELEMENTS - 1);
    present(name, v.data);
    offsets("strides of a view", sizes, axes, v.strides);
}

void views(const char* name, const transfuse_view* all, int32_t count, const int64_t* sizes, int axes) {
    if (count) present(name, all);
    for (int32_t i = 0; i < count; i++) view(name, all[i], sizes, axes);
}

// The code of a sweep with as many views as it reads, and so many where there is no code.
void sweep_code(const char* name, const transfuse_code* c, int32_t count, int32_t without) {
    if (!c) return within(name, count, without, without);
    code(*c);
    within(name, count, c->operands_count, c->operands_count);
}

// The windows of a slide along its three axes.
void slide(const transfuse_sweep& s, int64_t* sizes) {
    within("axes of a slide", s.kept, 5, 5);
    for (int a = 0; a < 3; a++) {
        within("inputs of a slide", sizes[2 + a] = s.inputs[a], 1, MOST);
        if (s.adaptive) continue;
        within("kernel of a slide", s.kernel[a], 1, LARGEST);
        within("stride of a slide", s.stride[a], 1, LARGEST);
        within("padding of a slide", s.padding[a], 0, LARGEST);
        within("dilation of a slide", s.dilation[a], 1, LARGEST);
        // The last window begins within the tensor or its padding.
        if (Wide(s.sizes[2 + a] - 1) * s.stride[a] - s.padding[a] >= Wide(s.inputs[a]) + s.padding[a])
            refuse("a slide has ", s.sizes[2 + a], " windows along an axis of ", s.inputs[a], " values with padding ",
                   s.padding[a], ", ", s.stride[a], " apart");
    }
    elements("values of a slide", sizes, 5);
}

}  // namespace

void validate_sweep(const transfuse_sweep* sweep) {
    present("sweep", sweep);
    const transfuse_sweep& s = *sweep;
    within("kind of a sweep", s.kind, 0, TF_KINDS - 1);
    within("folding of a sweep", s.folding, 0, TF_FOLDINGS - 1);
    within("axes of a sweep", s.kept, s.kind == TF_EACH ? 2 : 1, TF_AXES);
    within("axes of a sweep that are folded", s.folded, s.kind == TF_FOLD, s.kind == TF_FOLD ? TF_AXES - s.kept : 0);
    within("joined results of a sweep", s.joined, 0, s.kind == TF_FOLD && s.across ? TF_JOINED : 0);
    if (s.joined && s.sizes[s.kept - 1] % s.joined)
        refuse(s.sizes[s.kept - 1], " results of a sweep are not whole times ", s.joined);
    within("values of a sweep", s.values_count, 0, UINT8_MAX);
    within("others of a sweep", s.others_count, 0, UINT8_MAX);
    const int axes = s.kept + s.folded;
    for (int a = 0; a < axes; a++) within("size of a sweep", s.sizes[a], a < s.kept, MOST);
    elements("a sweep", s.sizes, axes);
    int64_t sizes[TF_AXES] = {};
    std::copy(s.sizes, s.sizes + axes, sizes);
    const bool slides = s.kind == TF_SLIDE, folds = s.kind == TF_FOLD, sign = slides && s.folding == TF_F_SIGN;
    if (slides) slide(s, sizes);
    if ((slides && s.folding > TF_F_MAX && !sign) || (folds && s.folding == TF_F_SIGN))
        refuse("folding ", s.folding, " is none of a sweep of kind ", s.kind);
    if (s.kind == TF_EACH) present("code of a sweep", s.before);
    views("values of a sweep", s.values, s.values_count, sizes, axes);
    sweep_code("values of a sweep", s.before, s.values_count, 1);
    const bool two = folds && (s.folding == TF_F_EXPONENTIALS || s.folding == TF_F_MOMENTS);
    if (s.after && (two || s.kind == TF_EACH)) refuse("a sweep has code for a result that it does not have");
    within("others of a sweep", s.others_count, sign, UINT8_MAX);
    views("others of a sweep", s.others, s.others_count, s.sizes, s.kept);
    sweep_code("others of a sweep", s.after, s.others_count - sign, 0);
    for (int i = 0; i < 1 + two; i++) view("output of a sweep", s.outs[i], s.sizes, s.kept);
    if (!two) within("element of a view", s.outs[1].element, 0, TF_ELEMENTS - 1);
}

void validate_winners(const transfuse_winners* winners) {
    present("winners", winners);
    const transfuse_winners& w = *winners;
    within("element", w.element, TF_F32, TF_F64);
    within("batch", w.batch, 0, MOST);
    within("in_channels", w.in_channels, 1, MOST);
    within("out_channels", w.out_channels, 1, MOST);
    divides("in_channels", w.groups, w.in_channels);
    divides("out_channels", w.groups, w.out_channels);
    for (int a = 0; a < 3; a++) {
        within("spatial size", w.spatial[a], 1, MOST);
        within("kernel", w.kernel[a], 1, LARGEST);
        within("stride", w.stride[a], 1, LARGEST);
        within("padding", w.padding[a], -LARGEST, LARGEST);
        within("dilation", w.dilation[a], 1, LARGEST);
        within("outputs", w.outputs[a], 1, MOST);
        within("windows", w.windows[a], 1, LARGEST);
        within("kernel of a pool", w.window[a], 1, LARGEST);
        within("stride of a pool", w.window_stride[a], 1, LARGEST);
        within("padding of a pool", w.window_padding[a], 0, w.window[a] / 2);
        within("dilation of a pool", w.window_dilation[a], 1, LARGEST);
    }
    addressable("input", {w.batch, w.in_channels, {w.spatial[0], w.spatial[1], w.spatial[2]}});
    addressable("the convolution's output", {w.batch, w.out_channels, {w.outputs[0], w.outputs[1], w.outputs[2]}});
    addressable("a pool's output", {w.batch, w.out_channels, {w.windows[0], w.windows[1], w.windows[2]}});
    addressable("kernel", {w.in_channels, w.out_channels, {w.kernel[0], w.kernel[1], w.kernel[2]}});
    present("gradient", w.gradient);
    present("input", w.input);
    present("weights", w.weights);
}

int64_t elements(const char* name, const int64_t* dims, size_t count) {
    int64_t all = 1;
    bool none = false;
    for (size_t i = 0; i < count; i++) {
        none = none || !dims[i];
        if (__builtin_mul_overflow(all, std::max<int64_t>(1, dims[i]), &all) || all > MOST)
            refuse(name, " of size ", std::vector<int64_t>(dims, dims + count), " has more than 2^48 elements");
    }
    return none ? 0 : all;
}

std::vector<Values> validate(const transfuse_program* program) {
    present("program", program);
    const transfuse_program& p = *program;
    within("element", p.element, 0, TF_ELEMENTS - 1);
    beside("operands", p.operands, p.element);
    beside("an input", p.input_element, p.element);
    beside("an output", p.output_element, p.element);
    within("batch", p.batch, 0, MOST);
    within("in_channels", p.in_channels, 1, MOST);
    within("out_channels", p.out_channels, 1, MOST);
    divides("in_channels", p.groups, p.in_channels);
    divides("out_channels", p.groups, p.out_channels);
    Values values = {p.batch, p.in_channels, {}};
    for (int a = 0; a < 3; a++) {
        within("spatial size", values.extents[a] = p.spatial[a], 1, MOST);
        within("kernel", p.kernel[a], 1, MOST);
    }
    addressable("input", values);
    const int64_t kernel[] = {p.in_channels, p.out_channels / p.groups, p.kernel[0], p.kernel[1], p.kernel[2]};
    elements("kernel", kernel, 5);
    if (p.kernel[0] * p.kernel[1] * p.kernel[2] > LARGEST)  // counted with int in the innermost loops
        refuse("kernel of ", p.kernel[0], " x ", p.kernel[1], " x ", p.kernel[2], " has more than 2^31 - 1 taps");
    before_steps(p, values);
    std::vector<Values> all = {values};
    convolve(values, p);
    all.push_back(values);
    after_steps(p, values, all);
    return all;
}

void validate_run(const transfuse_program* program) {
    const Values v = validate(program).back();
    const transfuse_program& p = *program;
    if (!p.batch) return;
    present("input", p.input);
    present("weights", p.weights);
    present("output", p.output);
    offsets("input_strides", {p.batch, p.in_channels, p.spatial[0], p.spatial[1], p.spatial[2]}, p.input_strides);
    offsets("output_strides", {v.batch, v.channels, v.extents[0], v.extents[1], v.extents[2]}, p.output_strides);
}

void validate_pack(const transfuse_program* program, const void* weights, const int64_t* strides, const void* to) {
    validate(program);
    const transfuse_program& p = *program;
    present("weights", weights);
    present("strides", strides);
    present("to", to);
    offsets("strides", {p.in_channels, p.out_channels / p.groups, p.kernel[0], p.kernel[1], p.kernel[2]}, strides);
}

void validate_values(const void* values, int64_t count, int32_t element) {
    within("count", count, 0, MOST);
    within("element", element, 0, TF_ELEMENTS - 1);
    if (count) present("values", values);
}
