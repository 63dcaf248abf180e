// The Python surface of the data plane; afd/_megamoe.pyi is its contract.
#include "attention/python.h"

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <sstream>

#include "attention/python_arrays.h"
#include "megamoe/attention_side.h"
#include "megamoe/cpu/domain.h"
#include "megamoe/cpu/target.h"
#include "megamoe/ffn_side.h"

namespace py = pybind11;

namespace megamoe {
namespace {

using attention::bad_argument;
using attention::kAny;
using attention::Rows;
using attention::rows_of;
using attention::vector_of;
using cpu::Domain;
using cpu::ExpertBank;
using cpu::Pool;
using cpu::Target;
using cpu::WeightType;

constexpr uint64_t kNsPerMs = 1'000'000;

int checked_index(const char* name, int value, int count) {
  if (value < 0 || value >= count) {
    bad_argument(name,
                 "must be in [0, " + std::to_string(count) + "), is " + std::to_string(value));
  }
  return value;
}

uint64_t deadline_of(int deadline_ms) {
  if (deadline_ms < 1) bad_argument("deadline_ms", "must be at least 1");
  return static_cast<uint64_t>(deadline_ms) * kNsPerMs;
}

// Python's handle on a Domain; the sides share it, so closing never unmaps under them.
struct DomainHandle {
  std::shared_ptr<Domain> domain;
  Domain& get() const {
    if (!domain) throw py::value_error("the domain is closed");
    return *domain;
  }
};

class PyAttentionSide {
 public:
  PyAttentionSide(const DomainHandle& domain, int rank, int deadline_ms)
      : domain_((domain.get(), domain.domain)),
        side_(domain_->memory(),
              checked_index("rank", rank, domain_->memory().layout.shape.attention_ranks),
              deadline_of(deadline_ms)) {}

  void dispatch(uint64_t step, int layer, int lane, py::handle x, py::handle ids,
                py::handle weights) {
    const Shape& shape = domain_->memory().layout.shape;
    checked_index("layer", layer, shape.moe_layers);
    checked_index("lane", lane, shape.lanes);
    const auto rows = rows_of<const float>(x, "x", kAny, shape.hidden);
    if (rows.n > shape.max_tokens) {
      bad_argument("x", "must have at most " + std::to_string(shape.max_tokens) + " rows, has " +
                            std::to_string(rows.n));
    }
    const int32_t* id = packed<int32_t>(ids, "ids", rows.n, shape.top_k);
    const float* weight = packed<float>(weights, "weights", rows.n, shape.top_k);
    const py::gil_scoped_release release;
    side_.dispatch(step, layer, lane, rows.data, rows.stride, id, weight, rows.n);
  }

  void combine(uint64_t step, int layer, int lane, py::handle out) {
    const Shape& shape = domain_->memory().layout.shape;
    checked_index("layer", layer, shape.moe_layers);
    checked_index("lane", lane, shape.lanes);
    const auto rows = rows_of<float>(out, "out", side_.tokens_sent(lane), shape.hidden);
    const py::gil_scoped_release release;
    side_.combine(step, layer, lane, rows.data, rows.stride);
  }

  const AttentionSide<Target>& side() const { return side_; }

  template <class T>
  static const T* packed(py::handle array, const char* name, int n, int width) {
    const auto rows = rows_of<const T>(array, name, n, width);
    if (rows.n > 1 && rows.stride != width) bad_argument(name, "must be contiguous");
    return rows.data;
  }

 private:
  std::shared_ptr<Domain> domain_;
  AttentionSide<Target> side_;
};

class PyFfnSide {
 public:
  PyFfnSide(const DomainHandle& domain, int rank, py::handle owner, const ExpertBank& experts,
            Pool& pool, int deadline_ms)
      : domain_((domain.get(), domain.domain)),
        side_(domain_->memory(), checked_index("rank", rank, shape().ffn_ranks),
              owned(rank, owner, experts), Target::Experts(experts, pool),
              deadline_of(deadline_ms)) {}

  void serve(uint64_t step, int lanes, py::handle attention_ranks) {
    if (lanes < 1 || lanes > shape().lanes) {
      bad_argument("lanes", "must be in [1, " + std::to_string(shape().lanes) + "], is " +
                                std::to_string(lanes));
    }
    const int32_t* ranks = vector_of<const int32_t>(attention_ranks, "attention_ranks", kAny);
    const auto count = static_cast<size_t>(py::len(attention_ranks));
    const std::vector<int32_t> chosen(ranks, ranks + count);
    for (const int32_t rank : chosen) {
      checked_index("attention_ranks", rank, shape().attention_ranks);
    }
    const py::gil_scoped_release release;
    side_.serve(step, lanes, chosen);
  }

  py::array_t<int64_t> expert_tokens() const {
    py::array_t<int64_t> out({shape().moe_layers, shape().experts});
    std::copy(side_.expert_tokens().begin(), side_.expert_tokens().end(), out.mutable_data());
    return out;
  }

  const FfnSide<Target>& side() const { return side_; }

 private:
  const Shape& shape() const { return domain_->memory().layout.shape; }

  std::vector<int32_t> owned(int rank, py::handle owner, const ExpertBank& experts) const {
    const int32_t* owners = vector_of<const int32_t>(owner, "owner", shape().experts);
    const std::vector<int32_t> table(owners, owners + shape().experts);
    for (const int32_t o : table) checked_index("owner", o, shape().ffn_ranks);
    if (experts.hidden() != shape().hidden || experts.moe_layers() != shape().moe_layers) {
      bad_argument("experts", "must have the layout's hidden and moe_layers");
    }
    const std::vector<int32_t> index = experts.owned_index(shape().experts);
    for (size_t e = 0; e < table.size(); ++e) {
      if ((table[e] == rank) != (index[e] >= 0)) {
        bad_argument("experts", "must hold exactly what owner gives FFN rank " +
                                    std::to_string(rank) + "; expert " + std::to_string(e) +
                                    " differs");
      }
    }
    domain_->agree_on_owners(table);
    return index;
  }

  std::shared_ptr<Domain> domain_;
  FfnSide<Target> side_;
};

template <class T>
void load_expert(ExpertBank& bank, int layer, int expert, py::handle gate, py::handle up,
                 py::handle down) {
  const int width = bank.width();
  const int hidden = bank.hidden();
  const auto packed = [](py::handle array, const char* name, int n, int columns) {
    return PyAttentionSide::packed<T>(array, name, n, columns);
  };
  bank.load(layer, expert, packed(gate, "gate", width, hidden), packed(up, "up", width, hidden),
            packed(down, "down", hidden, width));
}

void load_any(ExpertBank& bank, int layer, int expert, py::handle gate, py::handle up,
              py::handle down) {
  if (attention::holds<uint16_t>(attention::array_of(gate, "gate"))) {
    load_expert<uint16_t>(bank, layer, expert, gate, up, down);
  } else {
    load_expert<float>(bank, layer, expert, gate, up, down);
  }
}

// The colocated path: the same schedule, computation and order of sums as across the boundary.
void forward(const ExpertBank& bank, Pool& pool, int layer, py::handle x, py::handle ids,
             py::handle weights, py::handle out) {
  checked_index("layer", layer, bank.moe_layers());
  const auto rows = rows_of<const float>(x, "x", kAny, bank.hidden());
  const auto routes = rows_of<const int32_t>(ids, "ids", rows.n, kAny);
  const int top_k = routes.width;
  if (top_k > kMaxTopK)
    bad_argument("ids", "must have at most " + std::to_string(kMaxTopK) + " columns");
  const int32_t* id = PyAttentionSide::packed<int32_t>(ids, "ids", rows.n, top_k);
  const float* weight = PyAttentionSide::packed<float>(weights, "weights", rows.n, top_k);
  const auto result = rows_of<float>(out, "out", rows.n, bank.hidden());
  const py::gil_scoped_release release;
  const int hidden = bank.hidden();
  TileSchedule schedule;
  if (const auto bad =
          schedule.build({{id, rows.n}}, top_k, bank.owned_index(bank.owned()), bank.owned())) {
    throw BadExpertId("MoE layer " + std::to_string(layer) + ", token " +
                      std::to_string(bad->token) + ": expert id " + std::to_string(bad->id) +
                      " is outside [-1, " + std::to_string(bank.owned()) + ")");
  }
  const size_t width = static_cast<size_t>(hidden);
  std::vector<float> pulled(schedule.rows().size() * width);
  for (size_t i = 0; i < schedule.rows().size(); ++i) {
    const float* row = rows.data + rows.stride * schedule.rows()[i].token;
    std::copy(row, row + hidden, pulled.data() + i * width);
  }
  std::vector<float> returned(static_cast<size_t>(rows.n) * static_cast<size_t>(top_k) * width);
  const auto slot_row = [&](int token, int slot) {
    return returned.data() +
           (static_cast<size_t>(token) * static_cast<size_t>(top_k) + static_cast<size_t>(slot)) *
               width;
  };
  cpu::ExpertScratch scratch;
  bank.compute(pool, layer, schedule, pulled.data(), scratch,
               [&](int copy, const float* values, int first, int columns) {
                 const RoutedCopy& routed = schedule.copies()[static_cast<size_t>(copy)];
                 const int token = schedule.rows()[static_cast<size_t>(routed.row)].token;
                 cpu::row_codec().scale_f32(values, weight[token * top_k + routed.slot], columns,
                                            slot_row(token, routed.slot) + first);
               });
  pool.parallel_for(rows.n, [&](int token) {
    const float* chosen[kMaxTopK];
    int count = 0;
    for (int slot = 0; slot < top_k; ++slot) {
      if (id[token * top_k + slot] >= 0) chosen[count++] = slot_row(token, slot);
    }
    cpu::row_codec().sum_f32(chosen, count, hidden, result.data + result.stride * token);
  });
}

std::string describe(const Layout& layout) {
  std::ostringstream text;
  const auto line = [&](const char* name, const Region& region) {
    text << name << " +" << region.offset << " " << region.bytes << "\n";
  };
  line("handshake", layout.handshake);
  line("owner", layout.owner);
  line("abort", layout.abort);
  text << "segments +" << layout.first_segment << " " << layout.shape.attention_ranks << " x "
       << layout.segment_bytes << ", of " << layout.shape.lanes << " lanes x " << layout.lane_bytes
       << "\n";
  line("lane.pub", layout.pub);
  line("lane.done", layout.done);
  line("lane.count", layout.count);
  line("lane.rows", layout.rows);
  line("lane.scales", layout.scales);
  line("lane.ids", layout.ids);
  line("lane.weights", layout.weights);
  line("lane.out", layout.out);
  return text.str();
}

// `derived` carries the culprit as an attribute, which py::register_exception cannot.
void bind_errors(py::module_& module) {
  static PyObject* aborted = nullptr;
  const auto base = py::register_exception<Error>(module, "MegamoeError", PyExc_RuntimeError);
  py::register_exception<Deadline>(module, "Deadline", base);
  py::register_exception<HandshakeError>(module, "HandshakeError", base);
  py::register_exception<BadExpertId>(module, "BadExpertId", base);
  aborted = PyErr_NewException("afd._megamoe.Aborted", base.ptr(), nullptr);
  module.attr("Aborted") = py::reinterpret_borrow<py::object>(aborted);
  py::register_exception_translator([](std::exception_ptr pointer) {
    try {
      if (pointer) std::rethrow_exception(pointer);
    } catch (const Aborted& error) {
      py::object instance = py::reinterpret_borrow<py::object>(aborted)(error.what());
      instance.attr("culprit") = error.culprit;
      PyErr_SetObject(aborted, instance.ptr());
    }
  });
}

Layout layout_of(int attention_ranks, int ffn_ranks, int lanes, int max_tokens, int hidden,
                 int top_k, int experts, int moe_layers, Wire wire) {
  return make_layout(
      {attention_ranks, ffn_ranks, lanes, max_tokens, hidden, top_k, experts, moe_layers, wire});
}

void bind_memory(py::module_& module) {
  py::enum_<Wire>(module, "Wire")
      .value("FP8", Wire::FP8)
      .value("BF16", Wire::BF16)
      .value("FP32", Wire::FP32);
  py::class_<Layout>(module, "Layout")
      .def(py::init(&layout_of), py::kw_only(), py::arg("attention_ranks"), py::arg("ffn_ranks"),
           py::arg("lanes"), py::arg("max_tokens"), py::arg("hidden"), py::arg("top_k"),
           py::arg("experts"), py::arg("moe_layers"), py::arg("wire"))
      .def_readonly("total_bytes", &Layout::total_bytes)
      .def_readonly("segment_bytes", &Layout::segment_bytes)
      .def("describe", &describe);
  py::class_<DomainHandle>(module, "Domain")
      .def(py::init([](int fd, const Layout& layout, bool create) {
             return DomainHandle{std::make_shared<Domain>(fd, layout, create)};
           }),
           py::arg("fd"), py::arg("layout"), py::arg("create") = false)
      .def(
          "raise_abort", [](DomainHandle& self, int culprit) { self.get().raise_abort(culprit); },
          py::arg("culprit"))
      .def("close", [](DomainHandle& self) { self.domain.reset(); });
}

void bind_experts(py::module_& module) {
  py::class_<ExpertBank>(module, "Experts")
      .def(py::init<int, const std::vector<int32_t>&, int, int, WeightType>(), py::kw_only(),
           py::arg("moe_layers"), py::arg("expert_ids"), py::arg("hidden"), py::arg("width"),
           py::arg("dtype"))
      .def("load", &load_any, py::arg("layer"), py::arg("expert"), py::arg("gate"), py::arg("up"),
           py::arg("down"))
      .def("forward", &forward, py::arg("pool"), py::arg("layer"), py::arg("x"), py::arg("ids"),
           py::arg("weights"), py::arg("out"))
      .def_property_readonly("nbytes", &ExpertBank::bytes);
}

void bind_sides(py::module_& module) {
  py::class_<PyAttentionSide>(module, "AttentionSide")
      .def(py::init<const DomainHandle&, int, int>(), py::arg("domain"), py::arg("rank"),
           py::arg("deadline_ms"))
      .def("dispatch", &PyAttentionSide::dispatch, py::arg("step"), py::arg("layer"),
           py::arg("lane"), py::arg("x"), py::arg("ids"), py::arg("weights"))
      .def("combine", &PyAttentionSide::combine, py::arg("step"), py::arg("layer"), py::arg("lane"),
           py::arg("out"))
      .def_property_readonly("wait_ns",
                             [](const PyAttentionSide& self) { return self.side().wait_ns(); })
      .def_property_readonly("bytes_out",
                             [](const PyAttentionSide& self) { return self.side().bytes_out(); })
      .def_property_readonly("bytes_back",
                             [](const PyAttentionSide& self) { return self.side().bytes_back(); });
  py::class_<PyFfnSide>(module, "FfnSide")
      .def(py::init<const DomainHandle&, int, py::handle, const ExpertBank&, Pool&, int>(),
           py::arg("domain"), py::arg("rank"), py::arg("owner"), py::arg("experts"),
           py::arg("pool"), py::arg("deadline_ms"), py::keep_alive<1, 5>(), py::keep_alive<1, 6>())
      .def("serve", &PyFfnSide::serve, py::arg("step"), py::arg("lanes"),
           py::arg("attention_ranks"))
      .def_property_readonly("wait_ns", [](const PyFfnSide& self) { return self.side().wait_ns(); })
      .def_property_readonly("expert_tokens", &PyFfnSide::expert_tokens);
}

}  // namespace
}  // namespace megamoe

PYBIND11_MODULE(_megamoe, module) {
  module.attr("PROTOCOL_VERSION") = megamoe::kProtocolVersion;
  megamoe::bind_errors(module);
  bind_operations(module);
  megamoe::bind_memory(module);
  megamoe::bind_experts(module);
  megamoe::bind_sides(module);
}
