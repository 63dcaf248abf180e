#include "attention/python_weights.h"

#include <string>
#include <utility>

#include "attention/kv_cache.h"
#include "attention/linear.h"
#include "attention/python_arrays.h"
#include "megamoe/cpu/gemm.h"
#include "megamoe/cpu/isa.h"
#include "megamoe/cpu/pool.h"

namespace attention {
namespace {

using megamoe::cpu::PackedMatrix;
using megamoe::cpu::Pool;
using megamoe::cpu::WeightType;

void load(PackedMatrix& matrix, int first_row, py::handle weight) {
  const auto& array = array_of(weight, "weight");
  const bool is_f32 = holds<float>(array);
  if (!is_f32 && !holds<uint16_t>(array)) {
    bad_argument("weight", "must be float32, or bfloat16 viewed as uint16; is " +
                               py::str(weight.attr("dtype")).cast<std::string>());
  }
  const auto check = [&](const auto& rows) {
    if (rows.stride != rows.width) bad_argument("weight", "must be C-contiguous");
    if (first_row < 0 || first_row > matrix.rows() - rows.n) {
      bad_argument("weight", "with " + std::to_string(rows.n) + " rows does not fit at first_row " +
                                 std::to_string(first_row) + " of a matrix of " +
                                 std::to_string(matrix.rows()) + " rows");
    }
  };
  if (is_f32) {
    const auto rows = rows_of<const float>(weight, "weight", kAny, matrix.cols());
    check(rows);
    const py::gil_scoped_release release;
    matrix.load_f32(first_row, rows.data, rows.n);
  } else {
    const auto rows = rows_of<const uint16_t>(weight, "weight", kAny, matrix.cols());
    check(rows);
    const py::gil_scoped_release release;
    matrix.load_bf16(first_row, rows.data, rows.n);
  }
}

void gather(const PackedMatrix& matrix, py::handle rows, py::handle out) {
  const auto to = rows_of<float>(out, "out", kAny, matrix.cols());
  const int32_t* from = vector_of<const int32_t>(rows, "rows", to.n);
  for (int i = 0; i < to.n; ++i) {
    if (from[i] < 0 || from[i] >= matrix.rows()) {
      bad_argument("rows", "holds " + std::to_string(from[i]) + " at " + std::to_string(i) +
                               ", outside [0, " + std::to_string(matrix.rows()) + ")");
    }
  }
  for (int i = 0; i < to.n; ++i) matrix.gather_row(from[i], to.row(i));
}

void linear_call(Pool& pool, py::handle x, const PackedMatrix& weight, py::handle out,
                 bool accumulate) {
  const auto from = rows_of<const float>(x, "x", kAny, weight.cols());
  const auto to = rows_of<float>(out, "out", from.n, weight.rows());
  const py::gil_scoped_release release;
  linear(pool, from, weight, to, accumulate);
}

void store(KvCache& cache, int layer, py::handle k, py::handle v, py::handle locations) {
  const int width = cache.shape().kv_heads * cache.shape().head_dim;
  const auto keys = rows_of<const float>(k, "k", kAny, width);
  const auto values = rows_of<const float>(v, "v", keys.n, width);
  cache.store(layer, keys, values, vector_of<const int64_t>(locations, "locations", keys.n));
}

std::string isa_level(const py::object& name) {
  if (!name.is_none()) megamoe::cpu::set_isa(name.cast<std::string>());
  return megamoe::cpu::isa_name(megamoe::cpu::current_isa());
}

py::list isa_levels() {
  py::list names;
  for (const megamoe::cpu::Isa isa : megamoe::cpu::supported_isas()) {
    names.append(megamoe::cpu::isa_name(isa));
  }
  return names;
}

}  // namespace

void bind_weights(py::module_& module) {
  py::enum_<WeightType>(module, "WeightType")
      .value("BF16", WeightType::BF16)
      .value("FP32", WeightType::FP32)
      .value("FP8", WeightType::FP8);
  py::class_<Pool>(module, "Pool")
      .def(py::init<int>(), py::arg("threads"))
      .def_property_readonly("threads", &Pool::threads);
  py::class_<PackedMatrix>(module, "Matrix")
      .def(py::init<int, int, WeightType>(), py::arg("rows"), py::arg("cols"), py::arg("dtype"))
      .def("load", &load, py::arg("first_row"), py::arg("weight"))
      .def("gather", &gather, py::arg("rows"), py::arg("out"))
      .def_property_readonly("shape",
                             [](const PackedMatrix& m) { return std::pair(m.rows(), m.cols()); })
      .def_property_readonly("nbytes", &PackedMatrix::bytes);
  module.def("linear", &linear_call, py::arg("pool"), py::arg("x"), py::arg("weight"),
             py::arg("out"), py::arg("accumulate") = false);
  py::class_<KvCache>(module, "KvCache")
      .def(py::init([](int layers, int pages, int page_size, int kv_heads, int head_dim,
                       WeightType dtype) {
             return std::make_unique<KvCache>(
                 KvCache::Shape{layers, pages, page_size, kv_heads, head_dim, dtype});
           }),
           py::arg("layers"), py::arg("pages"), py::arg("page_size"), py::arg("kv_heads"),
           py::arg("head_dim"), py::arg("dtype"))
      .def("store", &store, py::arg("layer"), py::arg("k"), py::arg("v"), py::arg("locations"))
      .def_property_readonly("nbytes", &KvCache::bytes);
  module.def("isa_level", &isa_level, py::arg("name") = py::none(),
             "The instruction-set level in use; with a name, forces it first (for tests). Matrices "
             "keep the level they were made at.");
  module.def("isa_levels", &isa_levels, "The levels this machine can execute, lowest first.");
}

}  // namespace attention
