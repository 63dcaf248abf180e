#include <algorithm>
#include <initializer_list>
#include <utility>
#include <vector>

#include "megamoe/attention_side.h"
#include "megamoe/cpu/colocated.h"
#include "megamoe/cpu/target.h"
#include "megamoe/ffn_side.h"
#include "megamoe/python_parts.h"

namespace megamoe {
namespace {

using attention::bad_argument;
using attention::kAny;
using attention::rows_of;
using attention::vector_of;
using cpu::ColocatedExperts;
using cpu::Domain;
using cpu::ExpertBank;
using cpu::Pool;
using cpu::Target;

uint64_t deadline_ns(int deadline_ms) {
  if (deadline_ms < 1) bad_argument("deadline_ms", "must be at least 1");
  return static_cast<uint64_t>(deadline_ms) * 1'000'000;
}

// One side's share of the domain, and the checks both sides make of a step.
struct Opened {
  std::shared_ptr<Domain> domain;

  explicit Opened(const DomainHandle& handle) : domain(handle.domain) { open_domain(domain); }
  const Memory& memory() const { return domain->memory(); }
  const Shape& shape() const { return memory().layout.shape; }
  // Of this step's last number within the generation.
  uint64_t checked_step(int64_t step) const {
    check_range("step", step, 0, (int64_t{1} << kGenerationShift) / shape().moe_layers - 1);
    open_domain(domain);
    return static_cast<uint64_t>(step);
  }
};

int checked_rank(int rank, int count) {
  check_range("rank", rank, 0, count - 1);
  return rank;
}

// An ownership table as [attention_ranks][experts]; given as that, or as [experts] for all.
std::vector<int32_t> owner_table(py::handle owner, const Shape& shape) {
  const auto ranks = static_cast<size_t>(shape.attention_ranks);
  const auto experts = static_cast<size_t>(shape.experts);
  std::vector<int32_t> table;
  table.reserve(ranks * experts);
  if (attention::array_of(owner, "owner").nd == 1) {
    const int32_t* row = vector_of<const int32_t>(owner, "owner", shape.experts);
    for (size_t rank = 0; rank < ranks; ++rank) table.insert(table.end(), row, row + experts);
  } else {
    const int32_t* rows = packed<int32_t>(owner, "owner", shape.attention_ranks, shape.experts);
    table.assign(rows, rows + ranks * experts);
  }
  for (const int32_t rank : table) check_range("owner", rank, 0, shape.ffn_ranks - 1);
  return table;
}

class PyAttentionSide {
 public:
  PyAttentionSide(const DomainHandle& domain, int rank, int deadline_ms, py::handle owner)
      : opened_(domain),
        side_(opened_.memory(), checked_rank(rank, opened_.shape().attention_ranks),
              deadline_ns(deadline_ms)) {
    if (!owner.is_none()) opened_.domain->agree_on_owners(owner_table(owner, opened_.shape()));
  }

  void dispatch(int64_t step, int layer, int lane, py::handle x, py::handle ids,
                py::handle weights) {
    const Shape& shape = check(step, layer, lane);
    if (const auto* away = side_.away(lane)) {
      bad_argument("lane", std::to_string(lane) + " is still away with step " +
                               std::to_string(away->step) + ", layer " +
                               std::to_string(away->layer) + "; combine it first");
    }
    if (side_.published(static_cast<uint64_t>(step), layer, lane)) {
      bad_argument("step", std::to_string(step) + ", layer " + std::to_string(layer) +
                               ", must come after what lane " + std::to_string(lane) +
                               " published last; replay under a new generation");
    }
    const auto rows = rows_of<const float>(x, "x", kAny, shape.hidden);
    if (rows.n > shape.max_tokens) {
      bad_argument("x", "must have at most max_tokens = " + std::to_string(shape.max_tokens) +
                            " rows, has " + std::to_string(rows.n));
    }
    const int32_t* id = packed<int32_t>(ids, "ids", rows.n, shape.top_k);
    const float* weight = packed<float>(weights, "weights", rows.n, shape.top_k);
    const py::gil_scoped_release release;
    side_.dispatch(static_cast<uint64_t>(step), layer, lane, rows.data, rows.stride, id, weight,
                   rows.n);
  }

  void combine(int64_t step, int layer, int lane, py::handle out) {
    const Shape& shape = check(step, layer, lane);
    const auto* away = side_.away(lane);
    if (!away || away->step != static_cast<uint64_t>(step) || away->layer != layer) {
      bad_argument("lane", std::to_string(lane) + " was not dispatched for step " +
                               std::to_string(step) + ", layer " + std::to_string(layer));
    }
    const auto rows = rows_of<float>(out, "out", away->tokens, shape.hidden);
    const py::gil_scoped_release release;
    side_.combine(lane, rows.data, rows.stride);
  }

  const AttentionSide<Target>& side() const { return side_; }

 private:
  const Shape& check(int64_t step, int layer, int lane) const {
    opened_.checked_step(step);
    check_range("layer", layer, 0, opened_.shape().moe_layers - 1);
    check_range("lane", lane, 0, opened_.shape().lanes - 1);
    return opened_.shape();
  }

  Opened opened_;
  AttentionSide<Target> side_;
};

// For each attention rank, the bank's index of the experts that `table` gives `rank`; the bank must
// hold just those that some attention rank is sent here for.
std::vector<int32_t> owned_index(const Shape& shape, int rank, const std::vector<int32_t>& table,
                                 const ExpertBank& bank) {
  if (bank.hidden() != shape.hidden || bank.moe_layers() != shape.moe_layers) {
    bad_argument("experts",
                 "must have the layout's hidden and moe_layers, " + std::to_string(shape.hidden) +
                     " and " + std::to_string(shape.moe_layers) + "; has " +
                     std::to_string(bank.hidden()) + " and " + std::to_string(bank.moe_layers()));
  }
  const std::vector<int32_t> held = bank.owned_index(shape.experts);
  std::vector<bool> asked(held.size());
  std::vector<int32_t> index(table.size(), -1);
  for (size_t i = 0; i < table.size(); ++i) {
    if (table[i] != rank) continue;
    asked[i % held.size()] = true;
    index[i] = held[i % held.size()];
  }
  for (size_t e = 0; e < held.size(); ++e) {
    if (asked[e] != (held[e] >= 0)) {
      bad_argument("experts", "must hold exactly what owner gives FFN rank " +
                                  std::to_string(rank) + "; expert " + std::to_string(e) +
                                  (held[e] >= 0 ? " is held but not owned" : " is not held"));
    }
  }
  return index;
}

std::vector<int32_t> agreed_index(Domain& domain, int rank, py::handle owner,
                                  const ExpertBank& bank) {
  const Shape& shape = domain.memory().layout.shape;
  const std::vector<int32_t> table = owner_table(owner, shape);
  std::vector<int32_t> index = owned_index(shape, rank, table, bank);
  domain.agree_on_owners(table);
  return index;
}

// One row for each lane of each layer of a watched step, times in CLOCK_MONOTONIC nanoseconds.
struct Watched {
  static constexpr int kColumns = 7;  // layer, lane, wait, compute, published, tokens, tiles
  std::vector<int64_t>* rows;

  void waiting(int layer, int lane) { add({layer, lane, now()}); }
  void computing() { add({now()}); }
  template <class Sources, class Schedule>
  void published(const Sources& sources, const Schedule& schedule) {
    int64_t tokens = 0;
    for (const auto& source : sources) tokens += source.tokens;
    add({now(), tokens, static_cast<int64_t>(schedule.tiles().size())});
  }

 private:
  static int64_t now() { return static_cast<int64_t>(Target::now_ns()); }
  void add(std::initializer_list<int64_t> values) {
    rows->insert(rows->end(), values.begin(), values.end());
  }
};

class PyFfnSide {
 public:
  PyFfnSide(const DomainHandle& domain, int rank, py::handle owner, const ColocatedExperts& experts,
            Pool& pool, int deadline_ms)
      : opened_(domain),
        side_(opened_.memory(), checked_rank(rank, opened_.shape().ffn_ranks),
              agreed_index(*opened_.domain, rank, owner, experts.bank()),
              Target::Experts(experts.bank(), pool), deadline_ns(deadline_ms)) {}

  void serve(int64_t step, int lanes, py::handle attention_ranks) {
    const auto chosen = checked_ranks(step, lanes, attention_ranks);
    const py::gil_scoped_release release;
    side_.serve(static_cast<uint64_t>(step), lanes, chosen);
  }

  py::array_t<int64_t> serve_watched(int64_t step, int lanes, py::handle attention_ranks) {
    const auto chosen = checked_ranks(step, lanes, attention_ranks);
    std::vector<int64_t> rows;
    {
      const py::gil_scoped_release release;
      side_.serve(static_cast<uint64_t>(step), lanes, chosen, Watched{&rows});
    }
    py::array_t<int64_t> out({static_cast<py::ssize_t>(rows.size()) / Watched::kColumns,
                              py::ssize_t{Watched::kColumns}});
    std::copy(rows.begin(), rows.end(), out.mutable_data());
    return out;
  }

  py::array_t<int64_t> expert_tokens() const {
    py::array_t<int64_t> out({opened_.shape().moe_layers, opened_.shape().experts});
    std::copy(side_.expert_tokens().begin(), side_.expert_tokens().end(), out.mutable_data());
    return out;
  }

  const FfnSide<Target>& side() const { return side_; }

 private:
  std::vector<int32_t> checked_ranks(int64_t step, int lanes, py::handle attention_ranks) const {
    opened_.checked_step(step);
    check_range("lanes", lanes, 1, opened_.shape().lanes);
    const int32_t* ranks = vector_of<const int32_t>(attention_ranks, "attention_ranks", kAny);
    std::vector<int32_t> chosen(ranks, ranks + py::len(attention_ranks));
    std::sort(chosen.begin(), chosen.end());
    for (size_t i = 0; i < chosen.size(); ++i) {
      check_range("attention_ranks", chosen[i], 0, opened_.shape().attention_ranks - 1);
      if (i > 0 && chosen[i] == chosen[i - 1]) bad_argument("attention_ranks", "must not repeat");
      if (side_.served(static_cast<uint64_t>(step), chosen[i])) {
        bad_argument("step", std::to_string(step) +
                                 " must come after the last step served for rank " +
                                 std::to_string(chosen[i]) + "; replay under a new generation");
      }
    }
    return chosen;
  }

  Opened opened_;
  FfnSide<Target> side_;
};

}  // namespace

void bind_sides(py::module_& module) {
  py::class_<PyAttentionSide>(module, "AttentionSide")
      .def(py::init<const DomainHandle&, int, int, py::handle>(), py::arg("domain"),
           py::arg("rank"), py::arg("deadline_ms"), py::arg("owner") = py::none())
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
      .def(py::init<const DomainHandle&, int, py::handle, const ColocatedExperts&, Pool&, int>(),
           py::arg("domain"), py::arg("rank"), py::arg("owner"), py::arg("experts"),
           py::arg("pool"), py::arg("deadline_ms"), py::keep_alive<1, 5>(), py::keep_alive<1, 6>())
      .def("serve", &PyFfnSide::serve, py::arg("step"), py::arg("lanes"),
           py::arg("attention_ranks"))
      .def("serve_watched", &PyFfnSide::serve_watched, py::arg("step"), py::arg("lanes"),
           py::arg("attention_ranks"))
      .def_property_readonly("wait_ns", [](const PyFfnSide& self) { return self.side().wait_ns(); })
      .def_property_readonly("expert_tokens", &PyFfnSide::expert_tokens);
}

}  // namespace megamoe
