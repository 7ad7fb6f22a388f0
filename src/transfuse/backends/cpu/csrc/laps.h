// How long each pass of a run takes, where somebody asks for it.
#pragma once
#include <omp.h>

namespace TF_NAMESPACE {

class Laps {
  public:
    // Seconds go to `to`, one pass after another; nowhere where it is null.
    explicit Laps(double* to) : to(to), last(to ? omp_get_wtime() : 0) {}

    // A pass is done.
    void operator()() {
        if (!to) return;
        const double now = omp_get_wtime();
        *to++ = now - last;
        last = now;
    }

  private:
    double* to;
    double last;
};

}  // namespace TF_NAMESPACE
