// Statistics that all tiles of a segment gather together.
#pragma once
#include <cmath>
#include <vector>

#include "division.h"
#include "lines.h"
#include "statistics.h"

namespace TF_NAMESPACE {

// (x - mean) * (1 / sqrt(var + eps) * weight) + bias, from moments of slots or of groups.
template <class T>
static void affine(const Layer& p, Statistic<T>& to, int64_t offset, const Moments* moments, int64_t count, const Channels& c,
            const transfuse_step& s) {
    const auto weight = s.t0 ? by_slot<T>(p, s.t0, c, 1) : std::vector<T>(c.slots, T(1));
    const auto bias = by_slot<T>(p, s.t1, c, 0);
    const bool grouped = s.op != TF_BATCH_APPLY;
    for (int64_t i = 0; i < c.count; i++) {
        const int64_t slot = c.slot(i);
        const Moments& m = moments[grouped ? i / (c.count / count) : slot];
        to.shift[offset + slot] = T(m.mean);
        to.scale[offset + slot] = T(double(weight[slot]) / std::sqrt(m.m2 / m.n + s.f0));
        to.offset[offset + slot] = bias[slot];
    }
}

template <class T> class Gathering {
  public:
    Gathering(const Layer& p, const std::vector<Level>& at, int threads)
        : p(p), at(at), threads(threads), statistics(p.steps_count) {}

    // Room for what each tile finds for step i.
    void start(size_t i, int64_t tiles) {
        Statistic<T>& statistic = statistics[i];
        statistic.width = p.steps[i].op == TF_GROUP_STATS ? p.steps[i].i0 : at[i].channels.slots;
        statistic.moments = allocate<Moments>(tiles * statistic.width);  // every tile puts its own
    }

    // Merge the partials in the order of the tiles.
    void finish(size_t i, int64_t per_sample) {
        const transfuse_step& s = p.steps[i];
        Statistic<T>& statistic = statistics[i];
        const Channels& c = at[i].channels;
        const bool whole = s.op == TF_BATCH_STATS;
        const int64_t sets = whole ? 1 : p.batch, each = whole ? p.batch * per_sample : per_sample;
        statistic.resize(sets, c.slots);
        size_t use = i;
        while (p.steps[use].op != s.op - TF_BATCH_STATS + TF_BATCH_APPLY) use++;
        const bool moments = s.op == TF_BATCH_STATS || s.op == TF_GROUP_STATS;
        std::vector<Moments> merged(sets * statistic.width);
#pragma omp parallel for schedule(static) num_threads(threads)
        for (int64_t i = 0; i < sets * statistic.width; i++) {
            const Moments* part = statistic.moments.get() + i / statistic.width * each * statistic.width;
            for (int64_t t = 0; t < each; t++, part += statistic.width) {
                const Moments& next = part[i % statistic.width];
                moments ? merged[i].merge(next) : merge_sums(merged[i], next);
            }
        }
        for (int64_t set = 0; set < sets; set++) {
            const Moments* of = &merged[set * statistic.width];
            if (moments) {
                affine(p, statistic, set * c.slots, of, statistic.width, c, p.steps[use]);
                continue;
            }
            for (int64_t k = 0; k < c.slots; k++) {
                statistic.shift[set * c.slots + k] = s.op == TF_MAX_STATS ? T(of[k].mean) : T(0);
                statistic.scale[set * c.slots + k] = T(1 / of[k].m2);
            }
        }
        if (s.op == TF_BATCH_STATS && s.moments)
            for (int64_t k = 0; k < c.count; k++) {
                const Moments& of = merged[c.slot(k)];
                s.moments[k] = of.mean;
                s.moments[c.count + k] = of.m2 / of.n;
            }
        statistic.moments.reset();
    }

    // The part of one tile in step i.
    void add(size_t i, const Tile<T>& tile, const std::vector<Moments>& moments) { put(statistics[i], tile, moments); }

    // What step i applies: the last one gathered for its kind of step.
    Lines<T> lines(size_t i, int64_t sample) const {
        size_t k = i;
        while (p.steps[--k].op != p.steps[i].op - TF_BATCH_APPLY + TF_BATCH_STATS) continue;
        return statistics[k].lines(sample, at[i].channels.slots);
    }

  private:
    const Layer& p;
    const std::vector<Level>& at;
    const int threads;
    std::vector<Statistic<T>> statistics;  // by the step that gathers
};

}  // namespace TF_NAMESPACE
