#include <sstream>

#include "megamoe/python_parts.h"

namespace megamoe {
namespace {

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

Layout layout_of(int attention_ranks, int ffn_ranks, int lanes, int max_tokens, int hidden,
                 int top_k, int experts, int moe_layers, Wire wire, ScaleFormat scale_format,
                 ReturnMode return_mode) {
  return make_layout({attention_ranks, ffn_ranks, lanes, max_tokens, hidden, top_k, experts,
                      moe_layers, wire, scale_format, return_mode});
}

DomainHandle domain_of(int fd, const Layout& layout, bool create, int64_t generation) {
  check_range("generation", generation, 0, (int64_t{1} << (64 - kGenerationShift)) - 1);
  return {std::make_shared<cpu::Domain>(fd, layout, create, static_cast<uint64_t>(generation))};
}

void abort_all(DomainHandle& self, int culprit) {
  cpu::Domain& domain = open_domain(self.domain);
  const Shape& shape = domain.memory().layout.shape;
  check_range("culprit", culprit, -1, shape.attention_ranks + shape.ffn_ranks - 1);
  domain.raise_abort(culprit);
}

}  // namespace

void bind_memory(py::module_& module) {
  py::enum_<Wire>(module, "Wire")
      .value("FP8", Wire::FP8)
      .value("BF16", Wire::BF16)
      .value("FP32", Wire::FP32);
  py::enum_<ScaleFormat>(module, "ScaleFormat")
      .value("FP32_PER_128", ScaleFormat::Fp32Per128)
      .value("UE8M0_PER_128", ScaleFormat::Ue8m0Per128)
      .value("UE8M0_PER_32", ScaleFormat::Ue8m0Per32);
  py::enum_<ReturnMode>(module, "ReturnMode")
      .value("SLOT", ReturnMode::Slot)
      .value("REDUCED", ReturnMode::Reduced);
  py::class_<Layout>(module, "Layout")
      .def(py::init(&layout_of), py::kw_only(), py::arg("attention_ranks"), py::arg("ffn_ranks"),
           py::arg("lanes"), py::arg("max_tokens"), py::arg("hidden"), py::arg("top_k"),
           py::arg("experts"), py::arg("moe_layers"), py::arg("wire"),
           py::arg("scale_format") = ScaleFormat::Fp32Per128,
           py::arg("return_mode") = ReturnMode::Slot)
      .def_readonly("total_bytes", &Layout::total_bytes)
      .def_readonly("segment_bytes", &Layout::segment_bytes)
      .def("describe", &describe);
  py::class_<DomainHandle>(module, "Domain")
      .def(py::init(&domain_of), py::arg("fd"), py::arg("layout"), py::arg("create") = false,
           py::arg("generation") = 0)
      .def("raise_abort", &abort_all, py::arg("culprit"))
      .def("close", [](DomainHandle& self) { self.domain->close(); });
}

}  // namespace megamoe
