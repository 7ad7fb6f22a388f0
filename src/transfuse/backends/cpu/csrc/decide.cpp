#include "decide.h"

#include <cmath>

#include "rates.h"
#include "validate.h"

namespace {

bool is_open(const transfuse_step& s) {
    return (s.op == TF_CUT && s.i0 == TF_DECIDE) || (s.op == TF_CLAMP && (std::isnan(s.f0) || std::isnan(s.f1)));
}

// What a tile does that holds all a statistic covers, in place of the step that applies it.
int within_a_tile(int op) {
    return op == TF_GROUP_APPLY ? TF_GROUP_NORM : op == TF_EXP_APPLY || op == TF_MAX_APPLY ? TF_SPACE_SOFTMAX : -1;
}

// Values that one statistic covers, where the cut stands between the steps that gather and apply it and has
// nothing else to wait for; else 0.
int64_t covered(const transfuse_program& p, int32_t cut, const Values& values) {
    if (!cut || cut + 1 >= p.steps_count) return 0;
    const transfuse_step &gather = p.steps[cut - 1], &apply = p.steps[cut + 1];
    const bool both = gather.op - TF_BATCH_STATS == apply.op - TF_BATCH_APPLY;
    if (!both || within_a_tile(apply.op) < 0) return 0;
    return apply.op == TF_GROUP_APPLY ? values.channels / apply.i0 * values.positions() : values.positions();
}

// The flops' time that the maps before the convolution take for a value each time it is computed: none where a pool
// stores what they give.
double mapped(const transfuse_program& p) {
    double flops = 0;
    for (int32_t i = 0; i < p.before_count; i++) {
        if (p.before[i].op != TF_MAP) return 0;
        const transfuse_code& code = p.before[i].map->code;
        for (int k = 0; k < code.length; k++)
            flops += code.instructions[k].primitive < TF_P_EXP ? RATES.per_instruction : RATES.flops[p.element] / RATES.special;
    }
    return flops;
}

}  // namespace

std::vector<int32_t> decided(const transfuse_program* program) {
    const std::vector<Values> values = validate(program);
    const transfuse_program& p = *program;
    const double bytes = p.element == TF_F64 ? 8 : 4;  // of a value in the arithmetic of the element type
    const double taps = double(p.kernel[0] * p.kernel[1] * p.kernel[2]) * double(p.out_channels / p.groups);
    // What it takes to compute the values once more: from the input, or from what was stored last.
    double flops = 2 * double(values[0].count()) * taps + RATES.per_value * double(values[1].count());
    flops += mapped(p) * double(values[0].count());
    double read = double(values[0].count()) + double(p.in_channels) * taps;
    std::vector<int32_t> cuts(size_t(p.steps_count), TF_STORE);
    for (int32_t i = 0; i < p.steps_count; i++) {
        if (p.steps[i].op != TF_CUT) continue;
        const Values& here = values[size_t(i) + 1];
        cuts[i] = int32_t(p.steps[i].i0);
        if (cuts[i] == TF_DECIDE) {
            const int64_t held = covered(p, i, here);
            const double again = flops / RATES.flops[p.element] + read * bytes / RATES.bandwidth;
            const double stored = 2 * double(here.count()) * bytes / RATES.bandwidth;
            if (!flops && held && double(held) * bytes <= RATES.on_chip) cuts[i] = TF_HOLD;
            else cuts[i] = again < stored ? TF_AGAIN : TF_STORE;
        }
        if (cuts[i] == TF_STORE) flops = 0, read = double(here.count());
    }
    return cuts;
}

Settled::Settled(const transfuse_program& given) : program(given) {
    bool open = false;
    for (int32_t i = 0; i < given.steps_count; i++) open = open || is_open(given.steps[i]);
    if (!open) return;
    const std::vector<int32_t> cuts = decided(&given);
    for (int32_t i = 0; i < given.steps_count; i++) {
        transfuse_step s = given.steps[i];
        if (s.op == TF_CLAMP && is_open(s)) {  // everything becomes NaN, which no vector's min and max would give
            s.op = TF_SCALE;
            s.f0 = NAN;
        } else if (s.op == TF_CUT && cuts[i] == TF_HOLD) {
            steps.pop_back();
            s = given.steps[++i];
            s.op = within_a_tile(s.op);
        } else if (s.op == TF_CUT) {
            s.i0 = cuts[i];
        }
        steps.push_back(s);
    }
    program.steps = steps.data();
    program.steps_count = int32_t(steps.size());
    validate(&program);  // a statistic may have been meant for a second step, too
}
