/* The five functions from C, each against loops that follow its document and nothing else. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "transfuse.h"

static int failures = 0;

static void expect(int ok, const char* what) {
    if (!ok) {
        printf("FAILED: %s (message: %s)\n", what, transfuse_message());
        failures++;
    }
}

static double* zeros(size_t n) {
    double* p = calloc(n, sizeof(double));
    if (!p) exit(2);
    return p;
}

/* Integers from -3 to 3, in an order without a pattern. */
static double* integers(size_t n, unsigned seed) {
    double* p = zeros(n);
    for (size_t i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        p[i] = (double)((seed >> 24) % 7) - 3;
    }
    return p;
}

static double* scaled(double* p, size_t n, double by) {
    for (size_t i = 0; i < n; i++) p[i] *= by;
    return p;
}

static float* narrow(const double* p, size_t n) {
    float* q = malloc(n * sizeof(float));
    if (!q) exit(2);
    for (size_t i = 0; i < n; i++) q[i] = (float)p[i];
    return q;
}

/* Near in both element types, or equal where `tolerance` is 0. */
static void compare(const char* what, const double* want, const float* f32, const double* f64, size_t n,
                    double tolerance) {
    for (size_t i = 0; i < n; i++) {
        if (!(fabs(f32[i] - want[i]) <= tolerance) || !(fabs(f64[i] - want[i]) <= tolerance * 1e-8)) {
            printf("FAILED: %s[%zu] is %.9g in f32, %.17g in f64, not %.17g\n", what, i, f32[i], f64[i], want[i]);
            failures++;
            return;
        }
    }
}

typedef struct {
    size_t in[3], kernel[3], stride[3], padding[3], dilation[3], output_padding[3], out[3];
} Axes;

static void sizes(Axes* a) {
    for (int i = 0; i < 3; i++)
        a->out[i] = (a->in[i] - 1) * a->stride[i] - 2 * a->padding[i] +
                    a->dilation[i] * (a->kernel[i] - 1) + a->output_padding[i] + 1;
}

/* Every input stamps the kernel, times itself, onto the output. */
static double* stamp(const Axes* a, size_t B, size_t Ci, size_t Co, size_t groups, const double* x,
                     const double* w) {
    const size_t *n = a->in, *k = a->kernel, *o = a->out, per = Co / groups;
    double* y = zeros(B * Co * o[0] * o[1] * o[2]);
    for (size_t b = 0; b < B; b++)
        for (size_t ci = 0; ci < Ci; ci++)
            for (size_t co = 0; co < per; co++)
                for (size_t i = 0; i < n[0] * n[1] * n[2]; i++)
                    for (size_t t = 0; t < k[0] * k[1] * k[2]; t++) {
                        const size_t at[3] = {i / (n[1] * n[2]), i / n[2] % n[1], i % n[2]};
                        const size_t tap[3] = {t / (k[1] * k[2]), t / k[2] % k[1], t % k[2]};
                        size_t to = b * Co + ci / (Ci / groups) * per + co;
                        int inside = 1;
                        for (int d = 0; d < 3; d++) {
                            const size_t p = at[d] * a->stride[d] + tap[d] * a->dilation[d];
                            inside &= p >= a->padding[d] && p - a->padding[d] < o[d];
                            to = to * o[d] + p - a->padding[d];
                        }
                        if (inside)
                            y[to] += x[(b * Ci + ci) * n[0] * n[1] * n[2] + i] *
                                     w[(ci * per + co) * k[0] * k[1] * k[2] + t];
                    }
    return y;
}

static size_t volume(const size_t* n) { return n[0] * n[1] * n[2]; }

static void plain(void) {
    enum { B = 2, Ci = 4, Co = 6, G = 2 };
    Axes a = {{1, 4, 5}, {1, 3, 2}, {1, 2, 1}, {0, 1, 2}, {1, 1, 3}, {0, 1, 2}, {0}};
    sizes(&a);
    const size_t nx = B * Ci * volume(a.in), nw = Ci * Co / G * volume(a.kernel), ny = B * Co * volume(a.out);
    double *x = integers(nx, 1), *w = integers(nw, 2), *y = zeros(ny);
    float *xf = narrow(x, nx), *wf = narrow(w, nw), *yf = narrow(y, ny);
    double* want = stamp(&a, B, Ci, Co, G, x, w);
    expect(!transfuse_conv_transpose_2d_square_input_asym_kernel_f32(xf, wf, yf, B, Ci, Co, 4, 5, 3, 2, 2, 1, 1,
                                                                     2, 1, 2, 1, 3, G),
           "plain f32");
    expect(!transfuse_conv_transpose_2d_square_input_asym_kernel_f64(x, w, y, B, Ci, Co, 4, 5, 3, 2, 2, 1, 1, 2,
                                                                     1, 2, 1, 3, G),
           "plain f64");
    compare("plain", want, yf, y, ny, 0);
    free(x), free(w), free(y), free(xf), free(wf), free(yf), free(want);
}

static void softmax_bias_scale_sigmoid(void) {
    enum { B = 2, Ci = 3, Co = 5 };
    const double factor = -1.5;
    Axes a = {{1, 3, 4}, {1, 4, 3}, {1, 2, 1}, {0, 1, 0}, {1, 1, 1}, {0, 1, 0}, {0}};
    sizes(&a);
    const size_t nx = B * Ci * volume(a.in), nw = Ci * Co * volume(a.kernel), space = volume(a.out);
    const size_t ny = B * Co * space;
    double *x = integers(nx, 3), *w = scaled(integers(nw, 4), nw, 0.125), *y = zeros(ny);
    double *bias = integers(Co, 5), *add = integers(Co, 6);
    float *xf = narrow(x, nx), *wf = narrow(w, nw), *yf = narrow(y, ny);
    float *biasf = narrow(bias, Co), *addf = narrow(add, Co);
    double* want = stamp(&a, B, Ci, Co, 1, x, w);
    for (size_t i = 0; i < B * space; i++) {
        double *p = want + i / space * Co * space + i % space, total = 0;
        for (size_t c = 0; c < Co; c++) total += exp(p[c * space] + bias[c]);
        for (size_t c = 0; c < Co; c++)
            p[c * space] = 1 / (1 + exp(-(exp(p[c * space] + bias[c]) / total + add[c]) * factor));
    }
    expect(!transfuse_conv_transpose2d_softmax_biasadd_scaling_sigmoid_f32(
               xf, wf, biasf, addf, yf, factor, B, Ci, Co, 3, 4, 4, 3, 2, 1, 1, 0, 1, 0),
           "softmax f32");
    expect(!transfuse_conv_transpose2d_softmax_biasadd_scaling_sigmoid_f64(
               x, w, bias, add, y, factor, B, Ci, Co, 3, 4, 4, 3, 2, 1, 1, 0, 1, 0),
           "softmax f64");
    compare("softmax", want, yf, y, ny, 1e-6);
    free(x), free(w), free(y), free(bias), free(add), free(want);
    free(xf), free(wf), free(yf), free(biasf), free(addf);
}

static void avgpool_clamp_softmax_multiply(double low, double high) {
    enum { B = 2, Ci = 2, Co = 3, P = 2, D = 5, H = 4, W = 7 };
    Axes a = {{D / P, H / P, W / P}, {2, 3, 1}, {1, 2, 3}, {0, 1, 0}, {1, 1, 1}, {0, 1, 2}, {0}};
    sizes(&a);
    const size_t nx = B * Ci * D * H * W, nw = Ci * Co * volume(a.kernel), space = volume(a.out);
    const size_t np = B * Ci * volume(a.in), ny = B * Co * space;
    double *x = integers(nx, 7), *w = integers(nw, 8), *y = zeros(ny), *scale = integers(Co, 9);
    double* pooled = zeros(np);
    float *xf = narrow(x, nx), *wf = narrow(w, nw), *yf = narrow(y, ny), *scalef = narrow(scale, Co);
    for (size_t i = 0; i < B * Ci * D * H * W; i++) {
        const size_t c = i / (D * H * W), d = i / (H * W) % D / P, h = i / W % H / P, q = i % W / P;
        if (d < a.in[0] && h < a.in[1] && q < a.in[2])
            pooled[((c * a.in[0] + d) * a.in[1] + h) * a.in[2] + q] += x[i] / (P * P * P);
    }
    double* want = stamp(&a, B, Ci, Co, 1, pooled, w);
    for (size_t c = 0; c < B * Co; c++) {
        double *p = want + c * space, total = 0;
        for (size_t i = 0; i < space; i++) total += p[i] = exp(fmin(fmax(p[i], low), high) - high);
        for (size_t i = 0; i < space; i++) p[i] = scale[c % Co] * p[i] / total;
    }
    expect(!transfuse_conv_transpose3d_avgpool_clamp_softmax_multiply_f32(
               xf, wf, scalef, yf, B, Ci, Co, D, H, W, 2, 3, 1, 1, 2, 3, 0, 1, 0, 0, 1, 2, P, low, high),
           "avgpool f32");
    expect(!transfuse_conv_transpose3d_avgpool_clamp_softmax_multiply_f64(
               x, w, scale, y, B, Ci, Co, D, H, W, 2, 3, 1, 1, 2, 3, 0, 1, 0, 0, 1, 2, P, low, high),
           "avgpool f64");
    compare("avgpool", want, yf, y, ny, 3 * 108 * 0x1p-24); /* 3: the scale; 108 terms in each sum */
    free(x), free(w), free(y), free(scale), free(pooled), free(want);
    free(xf), free(wf), free(yf), free(scalef);
}

/* (p - mean) / sqrt(var + 1e-5) over what `same` puts together with each element. */
static double* normed(const double* p, size_t n, size_t (*same)(size_t)) {
    double* q = zeros(n);
    for (size_t i = 0; i < n; i++) {
        double count = 0, mean = 0, var = 0;
        for (size_t j = 0; j < n; j++)
            if (same(i) == same(j)) count++, mean += p[j];
        mean /= count;
        for (size_t j = 0; j < n; j++)
            if (same(i) == same(j)) var += (p[j] - mean) * (p[j] - mean) / count;
        q[i] = (p[i] - mean) / sqrt(var + 1e-5);
    }
    return q;
}

enum { NORM_B = 2, NORM_CO = 6, NORM_HO = 5, NORM_WO = 7, NORM_GROUPS = 3 };
static size_t channel_of(size_t i) { return i / (NORM_HO * NORM_WO) % NORM_CO; }
static size_t group_of(size_t i) {
    return i / ((NORM_HO / 2) * (NORM_WO / 2)) / (NORM_CO / NORM_GROUPS); /* with the sample */
}

static void batchnorm_tanh_maxpool_groupnorm(void) {
    enum { B = NORM_B, Ci = 3, Co = NORM_CO, Ho = NORM_HO, Wo = NORM_WO, Hp = Ho / 2, Wp = Wo / 2 };
    Axes a = {{1, 3, 3}, {1, 3, 2}, {1, 2, 2}, {0, 1, 0}, {1, 1, 1}, {0, 0, 1}, {0}};
    sizes(&a);
    expect(a.out[1] == Ho && a.out[2] == Wo, "the sizes this test is written for");
    const size_t nx = B * Ci * volume(a.in), nw = Ci * Co * volume(a.kernel), n = B * Co * Ho * Wo;
    const size_t ny = B * Co * Hp * Wp;
    double *x = integers(nx, 10), *w = scaled(integers(nw, 11), nw, 0.25), *y = zeros(ny);
    double bw[Co] = {1, -0.5, 2, 0, -1, 0.25}, *bb = scaled(integers(Co, 12), Co, 0.25);
    double *gw = integers(Co, 13), *gb = integers(Co, 14);
    float *xf = narrow(x, nx), *wf = narrow(w, nw), *yf = narrow(y, ny), *bwf = narrow(bw, Co);
    float *bbf = narrow(bb, Co), *gwf = narrow(gw, Co), *gbf = narrow(gb, Co);
    double *conv = stamp(&a, B, Ci, Co, 1, x, w), *first = normed(conv, n, channel_of), *pooled = zeros(ny);
    for (size_t i = 0; i < ny; i++) {
        const size_t bc = i / (Hp * Wp), h = i / Wp % Hp, q = i % Wp, c = bc % Co;
        double most = -2;
        for (size_t r = 0; r < 4; r++)
            most = fmax(most, tanh(first[(bc * Ho + 2 * h + r / 2) * Wo + 2 * q + r % 2] * bw[c] + bb[c]));
        pooled[i] = most;
    }
    double* want = normed(pooled, ny, group_of);
    for (size_t i = 0; i < ny; i++) want[i] = want[i] * gw[i / (Hp * Wp) % Co] + gb[i / (Hp * Wp) % Co];
    expect(!transfuse_conv_transpose2d_batchnorm_tanh_maxpool_groupnorm_f32(
               xf, wf, bwf, bbf, gwf, gbf, yf, B, Ci, Co, 3, 3, 3, 2, 2, 2, 1, 0, 0, 1, 1, NORM_GROUPS),
           "batchnorm f32");
    expect(!transfuse_conv_transpose2d_batchnorm_tanh_maxpool_groupnorm_f64(
               x, w, bw, bb, gw, gb, y, B, Ci, Co, 3, 3, 3, 2, 2, 2, 1, 0, 0, 1, 5, NORM_GROUPS),
           "batchnorm f64, with groups that are only carried along");
    compare("batchnorm", want, yf, y, ny, 1e-5);
    free(x), free(w), free(y), free(bb), free(gw), free(gb), free(conv), free(first), free(pooled), free(want);
    free(xf), free(wf), free(yf), free(bwf), free(bbf), free(gwf), free(gbf);
}

static void max_max_sum(void) {
    enum { B = 2, Ci = 3, Co = 4 };
    Axes a = {{3, 4, 7}, {4, 5, 2}, {3, 2, 2}, {1, 0, 0}, {1, 1, 1}, {0, 0, 0}, {0}};
    sizes(&a);
    const size_t q[3] = {a.out[0] / 6, a.out[1] / 6, a.out[2] / 6};
    const size_t nx = B * Ci * volume(a.in), nw = Ci * Co * volume(a.kernel), ny = B * volume(q);
    double *x = integers(nx, 15), *w = integers(nw, 16), *y = zeros(ny), *bias = integers(Co, 17);
    float *xf = narrow(x, nx), *wf = narrow(w, nw), *yf = narrow(y, ny), *biasf = narrow(bias, Co);
    double *conv = stamp(&a, B, Ci, Co, 1, x, w), *want = zeros(ny);
    for (size_t i = 0; i < B * Co * volume(q); i++) {
        const size_t bc = i / volume(q), d = i / (q[1] * q[2]) % q[0], h = i / q[2] % q[1], p = i % q[2];
        double most = -INFINITY;
        for (size_t r = 0; r < 216; r++)
            most = fmax(most, conv[((bc * a.out[0] + 6 * d + r / 36) * a.out[1] + 6 * h + r / 6 % 6) * a.out[2] +
                                   6 * p + r % 6]);
        want[bc / Co * volume(q) + i % volume(q)] += most + bias[bc % Co];
    }
    expect(!transfuse_conv_transpose3d_max_max_sum_f32(xf, wf, biasf, yf, B, Ci, Co, 3, 4, 7, 4, 5, 2, 3, 2, 2, 1,
                                                       0, 0),
           "max f32");
    expect(!transfuse_conv_transpose3d_max_max_sum_f64(x, w, bias, y, B, Ci, Co, 3, 4, 7, 4, 5, 2, 3, 2, 2, 1, 0,
                                                       0),
           "max f64");
    compare("max", want, yf, y, ny, 0);
    free(x), free(w), free(y), free(bias), free(conv), free(want);
    free(xf), free(wf), free(yf), free(biasf);
}

/* Refused: 1, a message that holds the words, and an output as it was. */
static void refusals(void) {
    float x[64] = {1}, w[64] = {1}, v[8] = {1}, y[512], as_it_was[512];
    memset(y, 0x5a, sizeof y);
    memcpy(as_it_was, y, sizeof y);
#define REFUSED(words, call)                                                      \
    expect((call) == 1 && strstr(transfuse_message(), words) != NULL, words); \
    expect(!memcmp(y, as_it_was, sizeof y), "an output that is left alone")
    REFUSED("conv_transpose2d: stride must be at least 1, but got stride=[0, 1]",
            transfuse_conv_transpose_2d_square_input_asym_kernel_f32(x, w, y, 1, 1, 1, 4, 4, 2, 2, 0, 1, 0, 0, 0, 0,
                                                                     1, 1, 1));
    REFUSED("padding must be at most 2147483647, but got padding=[0, 18446744073709551615]",
            transfuse_conv_transpose2d_softmax_biasadd_scaling_sigmoid_f32(x, w, v, v, y, 1.0, 1, 1, 1, 4, 4, 2, 2, 1,
                                                                           1, 0, (size_t)-1, 0, 0));
    REFUSED("avg_pool: input of size [4, 4, 2] is smaller than a window of 3",
            transfuse_conv_transpose3d_avgpool_clamp_softmax_multiply_f32(x, w, v, y, 1, 1, 1, 4, 4, 2, 1, 1, 1, 1, 1,
                                                                          1, 0, 0, 0, 0, 0, 0, 3, 0.0, 1.0));
    REFUSED("group_norm: num_groups=3 does not divide the 2 channels",
            transfuse_conv_transpose2d_batchnorm_tanh_maxpool_groupnorm_f32(x, w, v, v, v, v, y, 1, 1, 2, 4, 4, 2, 2,
                                                                            1, 1, 0, 0, 0, 0, 1, 3));
    REFUSED("max_pool: input of size [2, 2, 2] is smaller than a window of 3",
            transfuse_conv_transpose3d_max_max_sum_f32(x, w, v, y, 1, 1, 1, 4, 4, 4, 2, 2, 2, 1, 1, 1, 0, 0, 0));
    REFUSED("kernel is a null pointer",
            transfuse_conv_transpose_2d_square_input_asym_kernel_f32(x, NULL, y, 1, 1, 1, 4, 4, 2, 2, 1, 1, 0, 0, 0, 0,
                                                                     1, 1, 1));
    REFUSED("output shares memory with input",
            transfuse_conv_transpose_2d_square_input_asym_kernel_f32(y + 24, w, y, 1, 1, 1, 4, 4, 2, 2, 1, 1, 0, 0, 0,
                                                                     0, 1, 1, 1));
}

int main(void) {
    plain();
    softmax_bias_scale_sigmoid();
    avgpool_clamp_softmax_multiply(-0.5, 1);
    avgpool_clamp_softmax_multiply(-100, 100);
    batchnorm_tanh_maxpool_groupnorm();
    max_max_sum();
    refusals();
    printf(failures ? "%d failures\n" : "all right\n", failures);
    return failures != 0;
}
