#include "attention/linear.h"

#include <algorithm>
#include <vector>

namespace attention {
namespace {

using megamoe::cpu::gemm_rows;
using megamoe::cpu::PackedMatrix;

// Work below these takes about as long as waking a thread.
constexpr int64_t kInlineMultiplies = 1 << 19;
constexpr size_t kInlineBytes = 128 * 1024;

constexpr int kTasksPerThread = 4;
constexpr int kMinPanels = 4;  // what one row multiplies at a time
constexpr int kMinRows = 24;   // two register tiles

// A grid of panel ranges by row ranges.
struct Grid {
  int panels;  // a task
  int rows;    // a task
  int panel_tasks;
  int row_tasks;
};

int ceil_div(int a, int b) { return (a + b - 1) / b; }

Grid grid_of(int panels, int n, int threads) {
  const int wanted = threads * kTasksPerThread;
  Grid grid;
  grid.panels = std::max(kMinPanels, ceil_div(panels, wanted));
  grid.panel_tasks = ceil_div(panels, grid.panels);
  const int most_row_tasks = std::max(1, n / kMinRows);
  grid.row_tasks = std::clamp(ceil_div(wanted, grid.panel_tasks), 1, most_row_tasks);
  grid.rows = ceil_div(n, grid.row_tasks);
  grid.row_tasks = ceil_div(n, grid.rows);
  return grid;
}

}  // namespace

void linear(megamoe::cpu::Pool& pool, const Rows<const float>& x, const PackedMatrix& weight,
            const Rows<float>& out, bool accumulate) {
  if (x.n == 0) return;
  std::vector<const float*> from(x.n);
  std::vector<float*> to(x.n);
  for (int i = 0; i < x.n; ++i) {
    from[i] = x.row(i);
    to[i] = out.row(i);
  }
  const int64_t multiplies = int64_t{x.n} * weight.rows() * weight.cols();
  if (pool.threads() == 1 || (multiplies < kInlineMultiplies && weight.bytes() < kInlineBytes)) {
    gemm_rows(from.data(), to.data(), x.n, weight, 0, weight.panels(), accumulate);
    return;
  }
  const Grid grid = grid_of(weight.panels(), x.n, pool.threads());
  pool.parallel_for(grid.panel_tasks * grid.row_tasks, [&](int task) {
    const int panel = task % grid.panel_tasks * grid.panels;
    const int row = task / grid.panel_tasks * grid.rows;
    gemm_rows(from.data() + row, to.data() + row, std::min(grid.rows, x.n - row), weight, panel,
              std::min(panel + grid.panels, weight.panels()), accumulate);
  });
}

}  // namespace attention
