#pragma once

#include <stdexcept>
#include <string>

namespace megamoe {

struct Error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// The abort word was raised while waiting.
struct Aborted : Error {
  Aborted(const std::string& message, int culprit_rank) : Error(message), culprit(culprit_rank) {}
  int culprit;  // global rank, or -1 when nobody in particular
};

struct Deadline : Error {
  using Error::Error;
};

struct HandshakeError : Error {
  using Error::Error;
};

struct BadExpertId : Error {
  using Error::Error;
};

}  // namespace megamoe
