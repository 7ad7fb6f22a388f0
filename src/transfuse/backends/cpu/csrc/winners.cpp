// Gradients behind max windows, from the few outputs that have one. Compiled once per instruction set.
#include "winners.h"

#include <algorithm>
#include <functional>
#include <vector>

#include "engine.h"
#include "parallel.h"
#include "vector.h"

namespace TF_NAMESPACE {

constexpr int64_t SLABS = 16;  // of an input: what one thread sums at a time

template <class T> class Winners {
    struct Tap {
        int64_t tap, at;
    };
    // Taps of an output along one axis.
    struct Range {
        const Tap *first, *last;
        // Those that take inputs of a part alone; these fall from tap to tap.
        void narrow(int64_t from, int64_t to) {
            while (first < last && first->at >= to) first++;
            while (first < last && last[-1].at < from) last--;
        }
    };
    struct Place {
        int64_t z, y, x;
    };
    struct Winner {
        Place at;
        T gradient;
    };
    // Along one axis: the taps that reach each output, and the inputs they take there.
    struct Axis {
        std::vector<Tap> taps;
        std::vector<int64_t> first;  // of each output, and the end

        Axis(const transfuse_winners& w, int a) : first{0} {
            for (int64_t o = 0; o < w.outputs[a]; o++) {
                for (int64_t k = 0; k < w.kernel[a]; k++) {
                    const int64_t from = o + w.padding[a] - k * w.dilation[a];
                    if (from >= 0 && from % w.stride[a] == 0 && from / w.stride[a] < w.spatial[a])
                        taps.push_back({k, from / w.stride[a]});
                }
                first.push_back(int64_t(taps.size()));
            }
        }
        Range along(int64_t o) const { return {taps.data() + first[o], taps.data() + first[o + 1]}; }
    };

    const transfuse_winners& w;
    const int threads;
    const Axis axes[3];
    const int64_t inner, taps, inputs, outputs, windows;
    std::vector<std::vector<Winner>> found;  // of each sample and channel

    static int64_t volume(const int64_t* n) { return n[0] * n[1] * n[2]; }

    const T* weights(int64_t channel) const {
        return static_cast<const T*>(w.weights) + channel * taps * inner;
    }
    int64_t group(int64_t channel) const { return channel / (w.out_channels / w.groups) * inner; }

    struct Reach {
        Range axis[3];
    };
    Reach reach(const Place& at) const {
        return {{axes[0].along(at.z), axes[1].along(at.y), axes[2].along(at.x)}};
    }

    // f(input, tap) for every pair that meets in an output.
    template <class F> TF_INLINE void meet(const transfuse_winners& w, const Reach& r, F f) {
        for (const Tap* a = r.axis[0].first; a < r.axis[0].last; a++)
            for (const Tap* b = r.axis[1].first; b < r.axis[1].last; b++)
                for (const Tap* c = r.axis[2].first; c < r.axis[2].last; c++)
                    f((a->at * w.spatial[1] + b->at) * w.spatial[2] + c->at,
                      (a->tap * w.kernel[1] + b->tap) * w.kernel[2] + c->tap);
    }

    // to += g * from
    TF_INLINE void add(T* to, const T* from, T g, int64_t count) {
        int64_t c = 0;
        for (; c + LANES<T> <= count; c += LANES<T>) store(to + c, load(to + c) + fill(g) * load(from + c));
        if (c < count) store_some(to + c, load_some(to + c, count - c) + fill(g) * load_some(from + c, count - c), count - c);
    }

    // An output, but for the bias.
    T value(const T* x, const T* weights, const Place& place) const {
        Vec<T> sum = {}, other = {};
        meet(w, reach(place), [&](int64_t input, int64_t tap) __attribute__((always_inline)) {
            const T *a = x + input * w.in_channels, *b = weights + tap * inner;
            int64_t c = 0;
            for (; c + 2 * LANES<T> <= inner; c += 2 * LANES<T>) {
                sum += load(a + c) * load(b + c);
                other += load(a + c + LANES<T>) * load(b + c + LANES<T>);
            }
            if (c + LANES<T> <= inner) sum += load(a + c) * load(b + c), c += LANES<T>;
            if (c < inner) other += load_some(a + c, inner - c) * load_some(b + c, inner - c);
        });
        return fold_lanes<T>(sum + other, [](auto a, auto b) { return a + b; });
    }

    // The output that has the largest value of a window; every window has one.
    template <class F> Place winner(int64_t window, F value) const {
        const int64_t at[] = {window / w.windows[2] / w.windows[1], window / w.windows[2] % w.windows[1],
                              window % w.windows[2]};
        int64_t begin[3];
        for (int a = 0; a < 3; a++) begin[a] = at[a] * w.window_stride[a] - w.window_padding[a];
        bool any = false;
        Place best = {};
        T largest = 0;
        for (int64_t i = 0, z = begin[0]; i < w.window[0]; i++, z += w.window_dilation[0])
            for (int64_t j = 0, y = begin[1]; j < w.window[1]; j++, y += w.window_dilation[1])
                for (int64_t k = 0, x = begin[2]; k < w.window[2]; k++, x += w.window_dilation[2]) {
                    if (z < 0 || y < 0 || x < 0 || z >= w.outputs[0] || y >= w.outputs[1] || x >= w.outputs[2])
                        continue;
                    const T each = value(Place{z, y, x});
                    if (!any || each > largest || each != each) any = true, best = {z, y, x}, largest = each;
                }
        return best;
    }

    // A channel's winners, and the gradient by its weights: a sum for each sample, then of these.
    void channel(std::vector<T>& sum, int64_t channel) {
        T* by = static_cast<T*>(w.by_weights);
        if (by) std::fill_n(by += channel * taps * inner, taps * inner, T(0));
        const T* mine = weights(channel);
        const T bias = w.bias ? static_cast<const T*>(w.bias)[channel] : T(0);
        for (int64_t n = 0; n < w.batch; n++) {
            const int64_t line = n * w.out_channels + channel;
            const T* gradient = static_cast<const T*>(w.gradient) + line * windows;
            const T* known = w.values ? static_cast<const T*>(w.values) + line * outputs : nullptr;
            const T* x = static_cast<const T*>(w.input) + n * inputs * w.in_channels + group(channel);
            std::fill(sum.begin(), sum.end(), T(0));
            for (int64_t i = 0; i < windows; i++) {
                if (gradient[i] == 0) continue;
                const auto look = [&](const Place& o) {
                    return known[(o.z * w.outputs[1] + o.y) * w.outputs[2] + o.x];
                };
                const auto compute = [&](const Place& o) { return value(x, mine, o) + bias; };
                const Place place = known ? winner(i, look) : winner(i, compute);
                if (w.by_input) found[line].push_back({place, gradient[i]});
                if (by)
                    meet(w, reach(place), [&](int64_t input, int64_t tap) __attribute__((always_inline)) {
                        add(sum.data() + tap * inner, x + input * w.in_channels, gradient[i], inner);
                    });
            }
            if (by) add(by, sum.data(), T(1), taps * inner);
        }
    }

    // The gradient by a part of a sample's input, along the axis that is cut.
    void slab(int64_t sample, int axis, int64_t from, int64_t to) const {
        T* by = static_cast<T*>(w.by_input) + sample * inputs * w.in_channels;
        for (int64_t channel = 0; channel < w.out_channels; channel++)
            for (const Winner& each : found[sample * w.out_channels + channel]) {
                Reach r = reach(each.at);
                r.axis[axis].narrow(from, to);
                meet(w, r, [&](int64_t input, int64_t tap) __attribute__((always_inline)) {
                    add(by + input * w.in_channels + group(channel), weights(channel) + tap * inner,
                        each.gradient, inner);
                });
            }
    }

public:
    Winners(const transfuse_winners& w, int threads)
        : w(w), threads(threads), axes{Axis(w, 0), Axis(w, 1), Axis(w, 2)}, inner(w.in_channels / w.groups),
          taps(volume(w.kernel)), inputs(volume(w.spatial)), outputs(volume(w.outputs)),
          windows(volume(w.windows)), found(w.batch * w.out_channels) {}

    // Each value is summed by one thread in one order: results are the same for any number of them.
    void run() {
        in_parallel(
            threads, w.out_channels, [&] { return std::vector<T>(w.by_weights ? taps * inner : 0); },
            [&](std::vector<T>& sum, int64_t i) { channel(sum, i); });
        if (!w.by_input) return;
        std::fill_n(static_cast<T*>(w.by_input), w.batch * inputs * w.in_channels, T(0));
        const int axis = w.spatial[0] > 1 ? 0 : w.spatial[1] > 1 ? 1 : 2;
        const int64_t size = w.spatial[axis], slabs = std::min(size, SLABS);
        in_parallel(
            threads, w.batch * slabs, [] { return 0; },
            [&](int, int64_t i) {
                const int64_t at = i % slabs;
                slab(i / slabs, axis, at * size / slabs, (at + 1) * size / slabs);
            });
    }
};

void winners(const transfuse_winners& w, int threads) {
    w.element == TF_F64 ? Winners<double>(w, threads).run() : Winners<float>(w, threads).run();
}

}  // namespace TF_NAMESPACE
