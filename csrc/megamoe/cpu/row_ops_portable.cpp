#include "megamoe/cpu/row_ops.h"
#include "megamoe/layout.h"

#include "megamoe/numerics.h"
// The loops need the numerics.
#include "megamoe/cpu/row_loops.h"

namespace megamoe::cpu {

const RowOps& row_ops_portable() { return kRowOps; }

}  // namespace megamoe::cpu
