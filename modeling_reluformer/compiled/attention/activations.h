// The activations h of attention, a register of scores at a time: h(x), and the chain rule h'(x) g.
// fused/activations.py is the table that they are tested against.
#pragma once

#include "vectors.h"

namespace reluformer {
namespace {

// A closed gate gives zero whatever the gradient is; a NaN passes.
struct Relu {
  static Floats value(Floats x) { return x < 0.0f ? broadcast(0.0f) : x; }
  static Floats chain(Floats x, Floats, Floats g) { return x <= 0.0f ? broadcast(0.0f) : g; }
};

struct Relu2 {
  static Floats value(Floats x) { return x < 0.0f ? broadcast(0.0f) : x * x; }
  static Floats chain(Floats x, Floats, Floats g) { return x <= 0.0f ? broadcast(0.0f) : 2.0f * x * g; }
};

struct Relu6 {
  static Floats value(Floats x) {
    const Floats positive = x < 0.0f ? broadcast(0.0f) : x;
    return positive > 6.0f ? broadcast(6.0f) : positive;
  }
  static Floats chain(Floats x, Floats, Floats g) {
    const Floats below = x >= 6.0f ? broadcast(0.0f) : g;
    return x <= 0.0f ? broadcast(0.0f) : below;
  }
};

struct Sigmoid {
  static Floats value(Floats x) { return 1.0f / (1.0f + exponential(-x)); }
  static Floats chain(Floats, Floats u, Floats g) { return g * (u * (1.0f - u)); }
};

struct Softplus {
  // log(1 + e^x) = max(x, 0) + log(1 + y), y = e^-|x|; log(1 + y) = 2 artanh(s), s = y / (2 + y) <= 1/3
  static Floats value(Floats x) {
    const Floats magnitude = x < 0.0f ? -x : x, y = exponential(-magnitude), s = y / (2.0f + y), square = s * s;
    Floats series = 1.0f / 13 + square * (1.0f / 15);
    series = 1.0f / 11 + square * series;
    series = 1.0f / 9 + square * series;
    series = 1.0f / 7 + square * series;
    series = 1.0f / 5 + square * series;
    series = 1.0f / 3 + square * series;
    return (x < 0.0f ? broadcast(0.0f) : x) + 2.0f * (s + s * square * series);
  }
  static Floats chain(Floats x, Floats, Floats g) { return g * Sigmoid::value(x); }
};

struct Gelu {
  // Φ(-|x|) = e^(-x²/2) t P(t), t = 1 / (1 + 0.3 |x|); P is a least-squares fit on |x| <= 14, relative error 1.3e-8.
  static Floats normal(Floats x, Floats density) {
    const Floats magnitude = x < 0.0f ? -x : x, t = 1.0f / (1.0f + 0.3f * magnitude);
    Floats series = 0.11237646639347076f - t * 0.02061295695602894f;
    series = -0.22806911170482635f + t * series;
    series = 0.1915837824344635f + t * series;
    series = -0.07924903184175491f + t * series;
    series = 0.09605871140956879f + t * series;
    series = 0.07842528820037842f + t * series;
    series = 0.11022738367319107f + t * series;
    series = 0.11957283318042755f + t * series;
    series = 0.11968663334846497f + t * series;
    const Floats tail = density * t * series;
    return x > 0.0f ? 1.0f - tail : tail;
  }
  static Floats value(Floats x) {
    const Floats weight = x * normal(x, exponential(-0.5f * x * x));
    return x == -__builtin_inff() ? broadcast(0.0f) : weight;
  }
  static Floats chain(Floats x, Floats, Floats g) {
    const Floats density = exponential(-0.5f * x * x);
    return g * (normal(x, density) + x * density * 0.3989422804014327f);
  }
};

struct Identity {
  static Floats value(Floats x) { return x; }
  static Floats chain(Floats, Floats, Floats g) { return g; }
};

}  // namespace
}  // namespace reluformer
