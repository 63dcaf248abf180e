#include <pybind11/pybind11.h>

#include <string>

#include "attention/kernels.h"
#include "attention/paged_attention.h"
#include "attention/python_arrays.h"
#include "attention/python_weights.h"
#include "attention/route.h"
#include "attention/sample.h"

namespace attention {
namespace {

using megamoe::cpu::Pool;

// Smaller batches finish sooner than the lock can change hands.
constexpr int64_t kReleaseElements = 1 << 16;

// Runs work, with the interpreter lock released if it touches many elements.
template <class Work>
void run(int64_t elements, Work&& work) {
  if (elements < kReleaseElements) {
    work();
    return;
  }
  const py::gil_scoped_release release;
  work();
}

template <class T>
int64_t elements_of(const Rows<T>& rows) {
  return int64_t{rows.n} * rows.width;
}

// The width of a one-dimensional weight.
int length_of(py::handle object, const char* name) {
  return static_cast<int>(checked<const float>(object, name, 1).dimensions[0]);
}

int heads_of(const char* name, int width, int head_dim) {
  if (head_dim <= 0 || width % head_dim != 0) {
    bad_argument(name, "has rows of " + std::to_string(width) +
                           " elements, not a multiple of the head size " +
                           std::to_string(head_dim));
  }
  return width / head_dim;
}

void rms_norm_call(py::handle x, py::handle weight, float eps, py::handle out) {
  const int width = length_of(weight, "weight");
  const float* scale = vector_of<const float>(weight, "weight", width);
  const auto from = rows_of<const float>(x, "x", kAny, width);
  const auto to = rows_of<float>(out, "out", from.n, width);
  const Kernels& table = kernels();
  run(elements_of(from), [&] {
    for (int i = 0; i < from.n; ++i) table.rms_norm(from.row(i), scale, eps, to.row(i), width);
  });
}

void add_rms_norm_call(py::handle residual, py::handle delta, py::handle weight, float eps,
                       py::handle out) {
  const int width = length_of(weight, "weight");
  const float* scale = vector_of<const float>(weight, "weight", width);
  const auto stream = rows_of<float>(residual, "residual", kAny, width);
  const auto added = rows_of<const float>(delta, "delta", stream.n, width);
  const auto to = rows_of<float>(out, "out", stream.n, width);
  const Kernels& table = kernels();
  run(elements_of(stream), [&] {
    for (int i = 0; i < stream.n; ++i) {
      table.add_rms_norm(stream.row(i), added.row(i), scale, eps, to.row(i), width);
    }
  });
}

void head_norm_call(py::handle x, py::handle weight, float eps) {
  const int head_dim = length_of(weight, "weight");
  const float* scale = vector_of<const float>(weight, "weight", head_dim);
  const auto rows = rows_of<float>(x, "x", kAny, kAny);
  const int heads = heads_of("x", rows.width, head_dim);
  const Kernels& table = kernels();
  run(elements_of(rows), [&] {
    for (int i = 0; i < rows.n; ++i) {
      for (int head = 0; head < heads; ++head) {
        float* at = rows.row(i) + int64_t{head_dim} * head;
        table.rms_norm(at, scale, eps, at, head_dim);
      }
    }
  });
}

void rope_call(py::handle x, py::handle positions, py::handle cos, py::handle sin, int head_dim) {
  const auto rows = rows_of<float>(x, "x", kAny, kAny);
  const int heads = heads_of("x", rows.width, head_dim);
  const int32_t* at = vector_of<const int32_t>(positions, "positions", rows.n);
  const auto cosines = rows_of<const float>(cos, "cos", kAny, kAny);
  const auto sines = rows_of<const float>(sin, "sin", cosines.n, cosines.width);
  const int half = cosines.width;
  if (2 * int64_t{half} > head_dim) {
    bad_argument("cos", "rotates " + std::to_string(2 * int64_t{half}) +
                            " elements of heads that have " + std::to_string(head_dim));
  }
  for (int i = 0; i < rows.n; ++i) {
    if (at[i] < 0 || at[i] >= cosines.n) {
      bad_argument("positions", "holds " + std::to_string(at[i]) + " at " + std::to_string(i) +
                                    ", outside the table's [0, " + std::to_string(cosines.n) + ")");
    }
  }
  const Kernels& table = kernels();
  run(elements_of(rows), [&] {
    for (int i = 0; i < rows.n; ++i) {
      table.rope(rows.row(i), cosines.row(at[i]), sines.row(at[i]), heads, head_dim, half);
    }
  });
}

void paged_attention_call(Pool& pool, const KvCache& cache, int layer, py::handle q,
                          py::handle row_slot, py::handle row_length, py::handle page_table,
                          float scale, py::handle out, py::handle lse) {
  PagedQueries queries;
  queries.q = rows_of<const float>(q, "q", kAny, kAny);
  const int n = queries.q.n;
  const int heads = heads_of("q", queries.q.width, cache.shape().head_dim);
  if (heads == 0 || heads % cache.shape().kv_heads != 0) {
    bad_argument("q", "has " + std::to_string(heads) + " heads, not a multiple of the cache's " +
                          std::to_string(cache.shape().kv_heads));
  }
  queries.row_slot = vector_of<const int32_t>(row_slot, "row_slot", n);
  queries.row_length = vector_of<const int32_t>(row_length, "row_length", n);
  queries.page_table = rows_of<const int32_t>(page_table, "page_table", kAny, kAny);
  queries.scale = scale;
  queries.out = rows_of<float>(out, "out", n, queries.q.width);
  queries.lse = rows_of<float>(lse, "lse", n, heads);
  const py::gil_scoped_release release;
  paged_attention(pool, cache, layer, queries);
}

void merge_attention_call(py::handle out_a, py::handle lse_a, py::handle out_b, py::handle lse_b,
                          int head_dim) {
  const auto a = rows_of<float>(out_a, "out_a", kAny, kAny);
  const int heads = heads_of("out_a", a.width, head_dim);
  const auto b = rows_of<const float>(out_b, "out_b", a.n, a.width);
  const auto la = rows_of<float>(lse_a, "lse_a", a.n, heads);
  const auto lb = rows_of<const float>(lse_b, "lse_b", a.n, heads);
  run(elements_of(a), [&] { merge_attention(a, la, b, lb, head_dim); });
}

void silu_mul_call(py::handle gate_up, py::handle out) {
  const auto to = rows_of<float>(out, "out", kAny, kAny);
  if (to.width > INT_MAX / 2) bad_argument("out", "is too wide");
  const auto from = rows_of<const float>(gate_up, "gate_up", to.n, 2 * to.width);
  const Kernels& table = kernels();
  run(elements_of(from), [&] {
    for (int i = 0; i < to.n; ++i) {
      table.silu_mul(from.row(i), from.row(i) + to.width, to.row(i), to.width);
    }
  });
}

Rows<int32_t> top_ids_of(py::handle ids, int n, int experts) {
  const auto rows = rows_of<int32_t>(ids, "ids", n, kAny);
  if (rows.width < 1 || rows.width > experts) {
    bad_argument("ids", "asks for " + std::to_string(rows.width) + " of " +
                            std::to_string(experts) + " experts");
  }
  return rows;
}

void route_softmax_call(py::handle logits, bool renormalize, py::handle ids, py::handle weights) {
  const auto from = rows_of<const float>(logits, "logits", kAny, kAny);
  const auto chosen = top_ids_of(ids, from.n, from.width);
  const auto to = rows_of<float>(weights, "weights", from.n, chosen.width);
  run(elements_of(from), [&] { route_softmax(from, renormalize, chosen, to); });
}

void route_sigmoid_call(py::handle logits, py::handle bias, py::handle ids, py::handle weights) {
  const auto from = rows_of<const float>(logits, "logits", kAny, kAny);
  const float* shift = vector_of<const float>(bias, "bias", from.width);
  const auto chosen = top_ids_of(ids, from.n, from.width);
  const auto to = rows_of<float>(weights, "weights", from.n, chosen.width);
  run(elements_of(from), [&] { route_sigmoid(from, shift, chosen, to); });
}

void sample_call(py::handle logits, py::handle temperature, py::handle top_k, py::handle top_p,
                 py::handle seed, py::handle position, py::handle out) {
  SampleRows rows;
  rows.logits = rows_of<const float>(logits, "logits", kAny, kAny);
  if (rows.logits.width < 1) bad_argument("logits", "must have at least one column");
  const int n = rows.logits.n;
  rows.temperature = vector_of<const float>(temperature, "temperature", n);
  rows.top_k = vector_of<const int32_t>(top_k, "top_k", n);
  rows.top_p = vector_of<const float>(top_p, "top_p", n);
  rows.seed = vector_of<const uint64_t>(seed, "seed", n);
  rows.position = vector_of<const int64_t>(position, "position", n);
  rows.out = vector_of<int32_t>(out, "out", n);
  run(elements_of(rows.logits), [&] { sample(rows); });
}

}  // namespace
}  // namespace attention

void bind_operations(pybind11::module_& module) {
  using namespace attention;
  bind_weights(module);
  module.def("rms_norm", &rms_norm_call, py::arg("x"), py::arg("weight"), py::arg("eps"),
             py::arg("out"));
  module.def("add_rms_norm", &add_rms_norm_call, py::arg("residual"), py::arg("delta"),
             py::arg("weight"), py::arg("eps"), py::arg("out"));
  module.def("head_norm", &head_norm_call, py::arg("x"), py::arg("weight"), py::arg("eps"));
  module.def("rope", &rope_call, py::arg("x"), py::arg("positions"), py::arg("cos"), py::arg("sin"),
             py::arg("head_dim"));
  module.def("paged_attention", &paged_attention_call, py::arg("pool"), py::arg("cache"),
             py::arg("layer"), py::arg("q"), py::arg("row_slot"), py::arg("row_length"),
             py::arg("page_table"), py::arg("scale"), py::arg("out"), py::arg("lse"));
  module.def("merge_attention", &merge_attention_call, py::arg("out_a"), py::arg("lse_a"),
             py::arg("out_b"), py::arg("lse_b"), py::arg("head_dim"));
  module.def("silu_mul", &silu_mul_call, py::arg("gate_up"), py::arg("out"));
  module.def("route_softmax", &route_softmax_call, py::arg("logits"), py::arg("renormalize"),
             py::arg("ids"), py::arg("weights"));
  module.def("route_sigmoid", &route_sigmoid_call, py::arg("logits"), py::arg("bias"),
             py::arg("ids"), py::arg("weights"));
  module.def("sample", &sample_call, py::arg("logits"), py::arg("temperature"), py::arg("top_k"),
             py::arg("top_p"), py::arg("seed"), py::arg("position"), py::arg("out"));
}
