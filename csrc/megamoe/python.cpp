// The Python surface of the extension; afd/_megamoe.pyi is its contract.
#include "attention/python.h"

#include "megamoe/cpu/amx.h"
#include "megamoe/errors.h"
#include "megamoe/python_parts.h"

namespace megamoe {
namespace {

// A translator has no closure, and state that outlives the interpreter would be worse than a
// look-up on the way to an exception.
void raise_aborted(const Aborted& error) {
  const py::object type = py::module_::import("afd._megamoe").attr("Aborted");
  py::object instance = type(error.what());
  instance.attr("culprit") = error.culprit;
  PyErr_SetObject(type.ptr(), instance.ptr());
}

void bind_errors(py::module_& module) {
  const auto base = py::register_exception<Error>(module, "MegamoeError", PyExc_RuntimeError);
  py::register_exception<Deadline>(module, "Deadline", base);
  py::register_exception<HandshakeError>(module, "HandshakeError", base);
  py::register_exception<BadExpertId>(module, "BadExpertId", base);
  py::register_exception<cpu::AmxMismatch>(module, "AmxMismatch", base);
  module.attr("Aborted") = py::reinterpret_steal<py::object>(
      PyErr_NewException("afd._megamoe.Aborted", base.ptr(), nullptr));
  py::register_exception_translator([](std::exception_ptr pointer) {
    try {
      if (pointer) std::rethrow_exception(pointer);
    } catch (const Aborted& error) {
      raise_aborted(error);
    }
  });
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
