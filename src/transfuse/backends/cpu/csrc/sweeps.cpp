// Runs a sweep. Compiled once per instruction set.
#include "each.h"
#include "engine.h"
#include "fold.h"
#include "slide.h"

namespace TF_NAMESPACE {

template <class T> static void sweep_as(const transfuse_sweep& s, int threads) {
    switch (s.kind) {
        case TF_EACH: return each<T>(s, threads);
        case TF_FOLD: return Fold<T>(s, threads).run();
        default: return Slide<T>(s, threads).run();
    }
}

// In double where any view is.
void sweep(const transfuse_sweep& s, int threads) {
    bool wide = s.outs[0].element == TF_F64 || s.outs[1].element == TF_F64;
    for (int i = 0; i < s.values_count; i++) wide = wide || s.values[i].element == TF_F64;
    for (int i = 0; i < s.others_count; i++) wide = wide || s.others[i].element == TF_F64;
    wide ? sweep_as<double>(s, threads) : sweep_as<float>(s, threads);
}

}  // namespace TF_NAMESPACE
