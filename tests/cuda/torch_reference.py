"""What torch takes for the same work as bench_kernels.c, on the same card."""
import torch


def microseconds(run, repeats=20):
    for _ in range(3):
        run()
    times = []
    for _ in range(5):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(repeats):
            run()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1000 / repeats)
    return sorted(times)[2]


def show(name, run):
    print(f"torch {name:32} {microseconds(run):9.1f} us", flush=True)


n = 64 << 20
a, b, out = (torch.randn(n, device="cuda") for _ in range(3))
h, g, halves = a.bfloat16(), b.bfloat16(), out.bfloat16()
square = a[: 8192 * 8192].view(8192, 8192)
rows = a.view(-1, 4096)
show("copy f32", lambda: out.copy_(a))
show("add f32", lambda: torch.add(a, b, out=out))
show("add bf16", lambda: torch.add(h, g, out=halves))
show("exp f32", lambda: torch.exp(a, out=out))
show("add a row to f32", lambda: torch.add(rows, b[:4096], out=out.view(-1, 4096)))
show("add a column to f32", lambda: torch.add(rows, b[:16384].view(-1, 1), out=out.view(-1, 4096)))
show("exp bf16", lambda: torch.exp(h, out=halves))
show("transpose f32", lambda: square.t().contiguous())
show("transpose bf16", lambda: h[: 8192 * 8192].view(8192, 8192).t().contiguous())
show("sum of all f32", lambda: a.sum())
show("sum of all bf16", lambda: h.sum())
show("sum of rows f32", lambda: rows.sum(1))
show("sum of columns f32", lambda: rows.sum(0))
show("argmax of rows f32", lambda: rows.argmax(1))
show("softmax of rows of 4096 f32", lambda: torch.softmax(rows, 1))
show("softmax of rows of 131072 f32", lambda: torch.softmax(a.view(-1, 131072), 1))
weight = h[:4096]
show("rms_norm of rows of 4096 bf16", lambda: torch.nn.functional.rms_norm(h.view(-1, 4096), (4096,), weight, 1e-6))
show("sort of 16M f32", lambda: torch.sort(a[: 16 << 20]))
show("cumsum of 16M f32", lambda: torch.cumsum(a[: 16 << 20], 0))
index = torch.randint(0, 65536, (16 << 20,), device="cuda")
show("add 16M f32 at 64K places", lambda: torch.zeros(65536, device="cuda").index_add_(0, index, a[: 16 << 20]))
rows_index = index[: 16 << 10] % (16 << 10)
show("take of 16K rows of 1024 f32", lambda: a[: 16 << 20].view(-1, 1024)[rows_index])
show("argsort of rows of 1024 f32", lambda: torch.argsort(a[: 16 << 20].view(-1, 1024), stable=True, dim=1))
x, w = h[: 4096 * 4096].view(4096, 4096), g[: 4096 * 4096].view(4096, 4096)
show("matmul bf16 4096", lambda: x @ w)
show("matmul bf16 4096, w turned", lambda: x @ w.t())
show("matmul bf16 4096, x turned", lambda: x.t() @ w)
few = h[: 512 * 4096].view(512, 4096)
show("matmul bf16 512 rows, w turned", lambda: few @ w.t())
show("matmul f32 4096, w turned",
     lambda: a[: 4096 * 4096].view(4096, 4096) @ b[: 4096 * 4096].view(4096, 4096).t())
show("matmul f32 4096", lambda: a[: 4096 * 4096].view(4096, 4096) @ b[: 4096 * 4096].view(4096, 4096))
