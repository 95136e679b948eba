//! Packed layers at real shapes: `cargo bench -p trelliq-kernels`; elements are weights times rows
//! of x, so that `thrpt` reads as weights a second.
//!
//! All run on one thread but `threads/*`. Floors: `read` touches the codes without decoding them,
//! `decode` decodes codes that never leave the first-level cache.

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use std::hint::black_box;
use std::time::Duration;
use trelliq_codec::{Code, Trellis};
use trelliq_kernels::{
    Activations, Axis, Carrier, Gate, Isa, KernelOptions, Numerics, PackedMatrix, Scratch,
    TrellisLinear, gate_up,
};

/// (in, out) of SmolLM2's q, gate and down projections and of a 4096-wide square.
const SHAPES: [(usize, usize); 4] = [(576, 576), (576, 1536), (1536, 576), (4096, 4096)];

fn name(axis: Axis) -> &'static str {
    match axis {
        Axis::In => "reduce",
        Axis::Out => "scatter",
    }
}

fn layer(bits: u32, axis: Axis, (inputs, outputs): (usize, usize)) -> TrellisLinear {
    let (rows, cols) = if axis == Axis::In { (outputs, inputs) } else { (inputs, outputs) };
    let block_len = Trellis::choose_block_len(cols, bits).expect("a block length");
    let trellis = Trellis::new(Code::OneMad, 12, bits, block_len).expect("a legal trellis");
    let mut state = 1u32;
    let words: Vec<u32> = (0..rows * cols * bits as usize / 32)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            state ^ (state >> 15)
        })
        .collect();
    let scales = vec![0.02; rows];
    let matrix = PackedMatrix::new(trellis, axis, inputs, outputs, words.into(), scales);
    TrellisLinear::new(matrix.expect("a valid matrix"), None, None).expect("a plain layer")
}

fn input(len: usize) -> Vec<f32> {
    (0..len).map(|i| (i as f32 * 0.37).sin()).collect()
}

fn on_threads<R: Send>(threads: usize, work: impl FnOnce() -> R + Send) -> R {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("a pool");
    pool.install(work)
}

/// Seconds of `iterations` calls of one layer on a pool.
fn time(layer: &TrellisLinear, m: usize, options: &KernelOptions, iterations: u64) -> Duration {
    let x = input(m * layer.in_features());
    let mut y = vec![0.0f32; m * layer.out_features()];
    let mut scratch = Scratch::default();
    let mut call = || layer.forward(&x, m, &mut y, options, &mut scratch).expect("lengths match");
    call();
    let start = std::time::Instant::now();
    (0..iterations).for_each(|_| call());
    start.elapsed()
}

fn bench_layer(
    c: &mut Criterion,
    group: &str,
    id: String,
    layer: &TrellisLinear,
    m: usize,
    threads: usize,
    options: &KernelOptions,
) {
    let mut group = c.benchmark_group(group);
    group.throughput(Throughput::Elements((layer.in_features() * layer.out_features() * m) as u64));
    group.bench_function(BenchmarkId::from_parameter(id), |b| {
        b.iter_custom(|iterations| on_threads(threads, || time(layer, m, options, iterations)));
    });
    group.finish();
}

fn vectors(c: &mut Criterion) {
    for axis in [Axis::In, Axis::Out] {
        for bits in [2, 3, 4] {
            for shape in SHAPES {
                let id = format!("K={bits}/{}x{}", shape.0, shape.1);
                let layer = layer(bits, axis, shape);
                bench_layer(c, name(axis), id, &layer, 1, 1, &KernelOptions::default());
            }
        }
    }
}

/// Instruction sets and what activations are multiplied in.
fn instruction_sets(c: &mut Criterion) {
    for axis in [Axis::Out, Axis::In] {
        for bits in [2, 3, 4] {
            let layer = layer(bits, axis, (4096, 4096));
            for isa in Isa::ALL.into_iter().filter(|isa| *isa > Isa::Scalar && isa.available()) {
                for activations in [Activations::Int, Activations::F32] {
                    let options =
                        KernelOptions { isa: Some(isa), activations, ..Default::default() };
                    let id = format!("{}/{activations:?}/{isa:?}/K={bits}", name(axis));
                    bench_layer(c, "isa/4096x4096", id, &layer, 1, 1, &options);
                }
            }
        }
        let layer = layer(3, axis, (4096, 4096));
        for isa in Isa::ALL.into_iter().filter(|isa| *isa > Isa::Scalar && isa.available()) {
            for m in [1, 2, 4, 8] {
                let options = KernelOptions { isa: Some(isa), ..Default::default() };
                let id = format!("{}/{isa:?}/M={m}", name(axis));
                bench_layer(c, "shared/4096x4096", id, &layer, m, 1, &options);
            }
        }
    }
}

fn shared_and_prefill(c: &mut Criterion) {
    for axis in [Axis::In, Axis::Out] {
        let layer = layer(3, axis, (1536, 1536));
        for m in [2, 4, 8, 16, 32, 64, 96, 128, 512] {
            let decode = KernelOptions { prefill_from: Some(usize::MAX), ..Default::default() };
            let prefill = KernelOptions { prefill_from: Some(1), ..Default::default() };
            let expand = KernelOptions { expand_from: 1, ..Default::default() };
            let group = format!("{}/1536x1536", name(axis));
            for (method, options) in [("decode", decode), ("prefill", prefill), ("expand", expand)]
            {
                if method != "decode" || m <= 128 {
                    bench_layer(c, &group, format!("{method}/M={m}"), &layer, m, 1, &options);
                }
            }
        }
    }
}

/// What prefill is compared with: the gemm crate on a dense f32 matrix.
fn dense(c: &mut Criterion) {
    let (n, mut group) = (1536, c.benchmark_group("dense/1536x1536"));
    let weight = input(n * n);
    for m in [1, 32, 512] {
        let (x, mut y) = (input(m * n), vec![0.0f32; m * n]);
        group.throughput(Throughput::Elements((n * n * m) as u64));
        group.bench_function(BenchmarkId::from_parameter(format!("M={m}")), |b| {
            b.iter(|| {
                let (y, x, w) = (y.as_mut_ptr(), x.as_ptr(), weight.as_ptr());
                let (one, pitch) = (1, n as isize);
                let serial = gemm::Parallelism::None;
                // SAFETY: y is [m, n], x is [m, n] and w is [n, n], all contiguous.
                unsafe {
                    gemm::gemm(
                        m, n, n, y, one, pitch, false, x, one, pitch, w, pitch, one, 0.0, 1.0,
                        false, false, false, serial,
                    );
                }
            });
        });
    }
    group.finish();
}

fn gated(c: &mut Criterion) {
    let mut group = c.benchmark_group("gate_up");
    for axis in [Axis::In, Axis::Out] {
        for m in [1, 8, 512] {
            let (gate, up) = (layer(3, axis, (576, 1536)), layer(3, axis, (576, 1536)));
            let (x, mut y) = (input(m * 576), vec![0.0f32; m * 1536]);
            let options = KernelOptions::default();
            let mut scratch = Scratch::default();
            group.throughput(Throughput::Elements((2 * 576 * 1536 * m) as u64));
            group.bench_function(format!("{}/M={m}", name(axis)), |b| {
                on_threads(1, || {
                    b.iter(|| {
                        gate_up(&gate, &up, &x, m, &mut y, Gate::Silu, &options, &mut scratch)
                            .expect("lengths match");
                    });
                });
            });
        }
    }
    group.finish();
}

fn threads(c: &mut Criterion) {
    for axis in [Axis::In, Axis::Out] {
        for shape in [(576, 576), (4096, 4096)] {
            let layer = layer(3, axis, shape);
            for count in [1, 2] {
                let id = format!("{}/{}x{}/{count}", name(axis), shape.0, shape.1);
                bench_layer(c, "threads", id, &layer, 1, count, &KernelOptions::default());
            }
        }
    }
}

fn exact(c: &mut Criterion) {
    let options = KernelOptions { numerics: Numerics::Exact, ..Default::default() };
    for axis in [Axis::In, Axis::Out] {
        let layer = layer(3, axis, (1536, 1536));
        bench_layer(c, "exact", name(axis).to_owned(), &layer, 1, 1, &options);
    }
}

fn carrier(c: &mut Criterion) {
    let layer = layer(3, Axis::In, (1536, 1536));
    let carrier = Carrier::from_linear(&layer, Numerics::Fast);
    let mut group = c.benchmark_group("carrier/1536x1536");
    for m in [1, 8, 32, 512] {
        let (x, mut y) = (input(m * 1536), vec![0.0f32; m * 1536]);
        let (options, mut scratch) = (KernelOptions::default(), Scratch::default());
        group.throughput(Throughput::Elements((1536 * 1536 * m) as u64));
        group.bench_function(format!("M={m}"), |b| {
            on_threads(1, || {
                b.iter(|| carrier.forward(&x, m, &mut y, &options, &mut scratch).expect("lengths"));
            });
        });
    }
    group.finish();
}

fn floors(c: &mut Criterion) {
    let mut group = c.benchmark_group("floor");
    for bits in [2, 3, 4] {
        let streamed = layer(bits, Axis::In, (4096, 4096));
        group.throughput(Throughput::Elements(4096 * 4096));
        group.bench_function(format!("read/K={bits}"), |b| {
            b.iter(|| {
                let words = black_box(streamed.matrix().words());
                words.iter().fold(0u32, |sum, &word| sum.wrapping_add(word))
            });
        });
    }
    for axis in [Axis::In, Axis::Out] {
        for bits in [2, 3, 4] {
            let shape = if axis == Axis::In { (1024, 16) } else { (16, 1024) };
            let cached = layer(bits, axis, shape);
            group.throughput(Throughput::Elements(1024 * 16));
            group.bench_function(format!("decode/{}/K={bits}", name(axis)), |b| {
                b.iter_custom(|iterations| time(&cached, 1, &KernelOptions::default(), iterations));
            });
        }
    }
    group.finish();
}

fn settings() -> Criterion {
    Criterion::default()
        .sample_size(10)
        .warm_up_time(Duration::from_millis(100))
        .measurement_time(Duration::from_millis(400))
}

criterion_group! {
    name = linear;
    config = settings();
    targets = vectors, instruction_sets, shared_and_prefill, dense, gated, threads, exact, carrier, floors
}
criterion_main!(linear);
