#include <pybind11/stl.h>

#include "megamoe/cpu/colocated.h"
#include "megamoe/python_parts.h"

template <>
struct attention::ElementName<uint8_t> {
  static constexpr const char* kName = "uint8";
};

namespace megamoe {
namespace {

using attention::kAny;
using attention::rows_of;
using cpu::ColocatedExperts;
using cpu::ExpertBank;
using cpu::Fp8Weight;
using cpu::Pool;
using cpu::WeightType;

template <class T>
void load_as(ExpertBank& bank, int layer, int expert, py::handle gate, py::handle up,
             py::handle down) {
  const T* gates = packed<T>(gate, "gate", bank.width(), bank.hidden());
  const T* ups = packed<T>(up, "up", bank.width(), bank.hidden());
  const T* downs = packed<T>(down, "down", bank.hidden(), bank.width());
  const py::gil_scoped_release release;
  bank.load(layer, expert, gates, ups, downs);
}

void load(ColocatedExperts& experts, int layer, int expert, py::handle gate, py::handle up,
          py::handle down) {
  if (attention::holds<uint16_t>(attention::array_of(gate, "gate"))) {
    load_as<uint16_t>(experts.bank(), layer, expert, gate, up, down);
  } else {
    load_as<float>(experts.bank(), layer, expert, gate, up, down);
  }
}

// An e4m3 weight [rows, cols] and its scales, both packed.
Fp8Weight fp8_weight(py::handle codes, py::handle scales, const char* name, int rows, int cols,
                     std::pair<int, int> block) {
  const auto blocks = [](int size, int of) { return of < 1 ? 0 : (size + of - 1) / of; };
  return {packed<uint8_t>(codes, name, rows, cols),
          packed<float>(scales, (std::string(name) + "_scales").c_str(), blocks(rows, block.first),
                        blocks(cols, block.second)),
          block.first, block.second};
}

void load_fp8(ColocatedExperts& experts, int layer, int expert, py::handle gate, py::handle up,
              py::handle down, py::handle gate_scales, py::handle up_scales, py::handle down_scales,
              std::pair<int, int> block) {
  ExpertBank& bank = experts.bank();
  const int hidden = bank.hidden();
  const int width = bank.width();
  const Fp8Weight gates = fp8_weight(gate, gate_scales, "gate", width, hidden, block);
  const Fp8Weight ups = fp8_weight(up, up_scales, "up", width, hidden, block);
  const Fp8Weight downs = fp8_weight(down, down_scales, "down", hidden, width, block);
  const py::gil_scoped_release release;
  bank.load_fp8(layer, expert, gates, ups, downs);
}

void forward(ColocatedExperts& experts, Pool& pool, int layer, py::handle x, py::handle ids,
             py::handle weights, py::handle out) {
  const int hidden = experts.bank().hidden();
  check_range("layer", layer, 0, experts.bank().moe_layers() - 1);
  const auto rows = rows_of<const float>(x, "x", kAny, hidden);
  const int top_k = rows_of<const int32_t>(ids, "ids", rows.n, kAny).width;
  if (top_k > kMaxTopK) {
    attention::bad_argument("ids", "must have at most " + std::to_string(kMaxTopK) + " columns");
  }
  const auto result = rows_of<float>(out, "out", rows.n, hidden);
  const ColocatedExperts::Batch batch{rows.data,
                                      rows.stride,
                                      packed<int32_t>(ids, "ids", rows.n, top_k),
                                      packed<float>(weights, "weights", rows.n, top_k),
                                      result.data,
                                      result.stride,
                                      rows.n,
                                      top_k};
  const py::gil_scoped_release release;
  experts.forward(pool, layer, batch);
}

// Rows of scales [n, blocks]: float32, or uint8 exponents.
struct ScaleRows {
  std::byte* data;
  int64_t row_bytes;
  std::byte* row(int i) const { return data + row_bytes * i; }
};

template <class T>
ScaleRows scale_rows_of(py::handle scales, int n, int blocks) {
  const auto rows = rows_of<T>(scales, "scales", n, blocks);
  using Element = std::remove_const_t<T>;
  return {reinterpret_cast<std::byte*>(const_cast<Element*>(rows.data)),
          rows.stride * static_cast<int64_t>(sizeof(T))};
}

ScaleRows scale_rows(py::handle scales, ScaleFormat format, int n, int width, bool writeable) {
  const int blocks = scale_blocks(format, width);
  if (format == ScaleFormat::Fp32Per128) {
    return writeable ? scale_rows_of<float>(scales, n, blocks)
                     : scale_rows_of<const float>(scales, n, blocks);
  }
  return writeable ? scale_rows_of<uint8_t>(scales, n, blocks)
                   : scale_rows_of<const uint8_t>(scales, n, blocks);
}

void fp8_encode(py::handle x, py::handle codes, py::handle scales, ScaleFormat format) {
  const auto rows = rows_of<const float>(x, "x", kAny, kAny);
  const auto code = rows_of<uint8_t>(codes, "codes", rows.n, rows.width);
  const ScaleRows scale = scale_rows(scales, format, rows.n, rows.width, true);
  for (int i = 0; i < rows.n; ++i) {
    cpu::row_codec().encode_fp8(format, rows.row(i), rows.width, code.row(i), scale.row(i));
  }
}

void fp8_decode(py::handle codes, py::handle scales, py::handle out, ScaleFormat format) {
  const auto rows = rows_of<float>(out, "out", kAny, kAny);
  const auto code = rows_of<const uint8_t>(codes, "codes", rows.n, rows.width);
  const ScaleRows scale = scale_rows(scales, format, rows.n, rows.width, false);
  for (int i = 0; i < rows.n; ++i) {
    cpu::row_codec().decode_fp8(format, code.row(i), scale.row(i), rows.width, rows.row(i));
  }
}

}  // namespace

void bind_experts(py::module_& module) {
  py::class_<ColocatedExperts>(module, "Experts")
      .def(py::init<int, const std::vector<int32_t>&, int, int, WeightType>(), py::kw_only(),
           py::arg("moe_layers"), py::arg("expert_ids"), py::arg("hidden"), py::arg("width"),
           py::arg("dtype"))
      .def("load", &load, py::arg("layer"), py::arg("expert"), py::arg("gate"), py::arg("up"),
           py::arg("down"))
      .def("load_fp8", &load_fp8, py::arg("layer"), py::arg("expert"), py::arg("gate"),
           py::arg("up"), py::arg("down"), py::arg("gate_scales"), py::arg("up_scales"),
           py::arg("down_scales"), py::arg("block"))
      .def("forward", &forward, py::arg("pool"), py::arg("layer"), py::arg("x"), py::arg("ids"),
           py::arg("weights"), py::arg("out"))
      .def_property_readonly("nbytes",
                             [](const ColocatedExperts& self) { return self.bank().bytes(); });
  module.def("fp8_encode", &fp8_encode, py::arg("x"), py::arg("codes"), py::arg("scales"),
             py::arg("format") = ScaleFormat::Fp32Per128);
  module.def("fp8_decode", &fp8_decode, py::arg("codes"), py::arg("scales"), py::arg("out"),
             py::arg("format") = ScaleFormat::Fp32Per128);
}

}  // namespace megamoe
