//! Times packed linear layers on an NVIDIA GPU by graph replay over more weights than its L2 holds,
//! beside a device copy and cuBLAS bf16 in the same run:
//! `cargo run --release -p trelliq-kernels --example cuda_bench -- [quick|full|encoder|one AXIS IN OUT K M]`.

#[cfg(feature = "cuda")]
fn main() {
    bench::main();
}

#[cfg(not(feature = "cuda"))]
fn main() {}

#[cfg(feature = "cuda")]
mod bench {
    use cudarc::cublas::{CudaBlas, Gemm, GemmConfig, sys::cublasOperation_t};
    use cudarc::driver::sys::{CUevent_flags, CUgraphInstantiate_flags, CUstreamCaptureMode};
    use half::bf16;
    use rand::{RngCore, SeedableRng};
    use rand_chacha::ChaCha8Rng;
    use std::sync::Arc;
    use trelliq_codec::{Code, Trellis, tuned_gain};
    use trelliq_kernels::cuda::{CudaEncoder, CudaMatrix, CudaOptions, CudaSlice, Device};
    use trelliq_kernels::{Axis, Numerics, PackedMatrix};

    /// Bytes of weights that a measurement goes over at least: more than twice an H200's L2.
    const BYTES: usize = 160 << 20;
    const REPLAYS: usize = 30;

    /// Median microseconds of a replay of `count` operations, an operation.
    fn time(device: &Device, count: usize, mut queue: impl FnMut(usize)) -> f64 {
        let stream = device.stream();
        queue(0);
        device.synchronize().unwrap();
        stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED).unwrap();
        (0..count).for_each(&mut queue);
        let flags = CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
        let graph = stream.end_capture(flags).unwrap().unwrap();
        let mut times: Vec<f64> = (0..REPLAYS + 3)
            .map(|_| {
                let event = || stream.record_event(Some(CUevent_flags::CU_EVENT_DEFAULT)).unwrap();
                let start = event();
                graph.launch().unwrap();
                let end = event();
                f64::from(start.elapsed_ms(&end).unwrap()) * 1e3 / count as f64
            })
            .skip(3)
            .collect();
        times.sort_by(f64::total_cmp);
        times[times.len() / 2]
    }

    fn random_matrix(
        axis: Axis,
        inputs: usize,
        outputs: usize,
        bits: u32,
        seed: u64,
    ) -> PackedMatrix {
        let trellis = Trellis::new(Code::OneMad, 16, bits, 256).unwrap();
        let (rows, cols) = if axis == Axis::Out { (inputs, outputs) } else { (outputs, inputs) };
        let mut bytes = vec![0; rows * trellis.words_per_row(cols).unwrap() * 4];
        ChaCha8Rng::seed_from_u64(seed).fill_bytes(&mut bytes);
        let words: Vec<u32> =
            bytes.chunks_exact(4).map(|b| u32::from_le_bytes(b.try_into().unwrap())).collect();
        PackedMatrix::new(trellis, axis, inputs, outputs, words.into(), vec![0.02; rows]).unwrap()
    }

    fn activations(len: usize) -> Vec<bf16> {
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let mut uniform = || (rng.next_u32() >> 8) as f32 / (1 << 23) as f32 - 1.0;
        (0..len).map(|_| bf16::from_f32((0..6).map(|_| uniform()).sum())).collect()
    }

    fn packed(
        device: &Arc<Device>,
        axis: Axis,
        [inputs, outputs]: [usize; 2],
        bits: u32,
        rows: &[usize],
        options: &CudaOptions,
    ) {
        let size = inputs * outputs * bits as usize / 8;
        let copies = BYTES.div_ceil(size);
        let matrix = random_matrix(axis, inputs, outputs, bits, 7);
        let matrices: Vec<CudaMatrix> =
            (0..copies).map(|_| CudaMatrix::upload(device, &matrix).unwrap()).collect();
        let most = *rows.iter().max().unwrap();
        let x = device.upload(&activations(most * inputs)).unwrap();
        let mut y: CudaSlice<bf16> = device.zeros(most * outputs).unwrap();
        let mut times = Vec::new();
        let mut last_rows = Vec::new();
        for &m in rows {
            times.push(time(device, copies, |i| {
                matrices[i].multiply(&x, m, &mut y, options).unwrap();
            }));
            let y = device.download(&y).unwrap();
            last_rows.push(y[(m - 1) * outputs..][..outputs].to_vec());
        }
        let errors = errors(&matrix, &device.download(&x).unwrap(), rows, &last_rows);
        for ((&m, us), error) in rows.iter().zip(times).zip(errors) {
            println!(
                "packed axis {} {inputs:6} -> {outputs:6} K={bits} M={m:4} {us:9.2} us {:7.0} GB/s error {error:.1e}",
                axis as u32,
                size as f64 / us / 1e3,
            );
        }
        let mut dense: CudaSlice<bf16> = device.zeros(inputs * outputs).unwrap();
        if rows.contains(&2048) {
            let us =
                time(device, copies, |i| matrices[i].expand(Numerics::Fast, &mut dense).unwrap());
            println!("expand axis {} {inputs:6} -> {outputs:6} K={bits} {us:9.2} us", axis as u32);
        }
    }

    /// Relative errors of the last row of each product against sums in f64 on the CPU; of axis 1 only the
    /// first outputs.
    fn errors(matrix: &PackedMatrix, x: &[bf16], rows: &[usize], found: &[Vec<bf16>]) -> Vec<f64> {
        let (inputs, outputs) = (matrix.in_features(), matrix.out_features());
        let scatter = matrix.axis() == Axis::Out;
        let counted = if scatter { outputs } else { outputs.min(64) };
        let mut sums = vec![vec![0.0f64; counted]; rows.len()];
        let mut weights = vec![0.0; matrix.cols()];
        for r in 0..if scatter { inputs } else { counted } {
            matrix.decode_row(r, matrix.values(), Numerics::Fast, &mut weights).unwrap();
            for (&m, sums) in rows.iter().zip(&mut sums) {
                let x = &x[(m - 1) * inputs..][..inputs];
                if scatter {
                    let x = x[r].to_f64();
                    sums.iter_mut().zip(&weights).for_each(|(s, &w)| *s += f64::from(w) * x);
                } else {
                    sums[r] = weights.iter().zip(x).map(|(&w, x)| f64::from(w) * x.to_f64()).sum();
                }
            }
        }
        let relative = |(sums, found): (&Vec<f64>, &Vec<bf16>)| {
            let pairs = || sums.iter().zip(found);
            let difference: f64 = pairs().map(|(s, y)| (s - y.to_f64()).powi(2)).sum();
            (difference / sums.iter().map(|s| s * s).sum::<f64>()).sqrt()
        };
        sums.iter().zip(found).map(relative).collect()
    }

    fn dense(device: &Arc<Device>, [inputs, outputs]: [usize; 2], rows: &[usize]) {
        let copies = BYTES.div_ceil(inputs * outputs * 2).max(3);
        let mut state = 1u32;
        let random: Vec<bf16> = (0..inputs * outputs)
            .map(|_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                bf16::from_f32((state >> 8) as f32 / (1 << 23) as f32 - 1.0)
            })
            .collect();
        let weights: Vec<CudaSlice<bf16>> =
            (0..copies).map(|_| device.upload(&random).unwrap()).collect();
        let most = *rows.iter().max().unwrap();
        let x = device.upload(&activations(most * inputs)).unwrap();
        let mut y: CudaSlice<bf16> = device.zeros(most * outputs).unwrap();
        let blas = CudaBlas::new(device.stream().clone()).unwrap();
        for &m in rows {
            let config = GemmConfig {
                transa: cublasOperation_t::CUBLAS_OP_T,
                transb: cublasOperation_t::CUBLAS_OP_N,
                m: outputs as i32,
                n: m as i32,
                k: inputs as i32,
                alpha: bf16::ONE,
                lda: inputs as i32,
                ldb: inputs as i32,
                beta: bf16::ZERO,
                ldc: outputs as i32,
            };
            let us = time(device, copies, |i| {
                // SAFETY: the shapes are those of the buffers.
                unsafe { blas.gemm(config, &weights[i], &x, &mut y).unwrap() }
            });
            println!("cuBLAS bf16   {inputs:6} -> {outputs:6}     M={m:4} {us:9.2} us");
        }
    }

    fn copy(device: &Device) {
        let from: CudaSlice<u8> = device.zeros(4 << 30).unwrap();
        let mut to: CudaSlice<u8> = device.zeros(4 << 30).unwrap();
        let us = time(device, 1, |_| device.stream().memcpy_dtod(&from, &mut to).unwrap());
        println!("device copy {:.0} GB/s read and written", 2.0 * (4u64 << 30) as f64 / us / 1e3);
    }

    /// Rate and distortion on N(0,1) under the gain that loses least.
    fn encoder(device: &Arc<Device>, state_bits: u32, bits: u32) {
        let trellis = Trellis::new(Code::OneMad, state_bits, bits, 256).unwrap();
        let count = if state_bits > 12 { 8 << 20 } else { 64 << 20 };
        let mut rng = ChaCha8Rng::seed_from_u64(3);
        let mut uniform = || (f64::from(rng.next_u32()) + 0.5) / 2f64.powi(32);
        let gain = tuned_gain(Code::OneMad, state_bits, bits) as f32;
        let x: Vec<f32> = (0..count / 2)
            .flat_map(|_| {
                let radius = (-2.0 * uniform().ln()).sqrt();
                let angle = std::f64::consts::TAU * uniform();
                [(radius * angle.cos()) as f32 / gain, (radius * angle.sin()) as f32 / gain]
            })
            .collect();
        let mut encoder = CudaEncoder::new(device, trellis, 2).unwrap();
        let on_device = device.upload(&x).unwrap();
        let mut states: CudaSlice<u16> = device.zeros(count).unwrap();
        let mut best = f64::INFINITY;
        for _ in 0..3 {
            device.synchronize().unwrap();
            let start = std::time::Instant::now();
            encoder.encode_on_device(&on_device, &mut states).unwrap();
            device.synchronize().unwrap();
            best = best.min(start.elapsed().as_secs_f64());
        }
        let values = trellis.values();
        let sum: f64 = (x.iter().zip(device.download(&states).unwrap()))
            .map(|(&x, s)| f64::from(gain * (x - values[usize::from(s)])).powi(2))
            .sum();
        println!(
            "encoder L={state_bits} K={bits} {:8.1} M weights/s distortion {:.5}",
            count as f64 / best / 1e6,
            sum / count as f64
        );
    }

    const SHAPES: [[usize; 2]; 5] =
        [[4096, 14336], [14336, 4096], [8192, 8192], [4096, 4096], [8192, 28672]];

    pub fn main() {
        let arguments: Vec<String> = std::env::args().skip(1).collect();
        let device = Device::open(0).unwrap();
        println!(
            "{} sm_{:?} {} processors",
            device.name(),
            device.architecture(),
            device.processors()
        );
        let options = CudaOptions::default();
        let axes = [Axis::Out, Axis::In];
        match arguments.first().map(String::as_str) {
            Some("one") => {
                let n: Vec<usize> = arguments[1..].iter().map(|a| a.parse().unwrap()).collect();
                packed(&device, axes[n[0]], [n[1], n[2]], n[3] as u32, &[n[4]], &options);
            }
            Some("encoder") => {
                for state_bits in [12, 16] {
                    (1..=6).for_each(|bits| encoder(&device, state_bits, bits));
                }
            }
            Some("full") => {
                copy(&device);
                for shape in SHAPES {
                    dense(&device, shape, &[1, 4, 8, 32, 512, 2048]);
                    for axis in axes {
                        packed(
                            &device,
                            axis,
                            shape,
                            3,
                            &[1, 2, 4, 8, 16, 32, 64, 128, 512, 2048],
                            &options,
                        );
                        for bits in [1, 2, 4, 5, 6, 8] {
                            packed(&device, axis, shape, bits, &[1, 8], &options);
                        }
                    }
                }
            }
            _ => {
                copy(&device);
                for shape in SHAPES {
                    dense(&device, shape, &[1, 8, 32]);
                    for axis in axes {
                        packed(&device, axis, shape, 3, &[1, 2, 4, 8, 32, 2048], &options);
                        packed(&device, axis, shape, 2, &[1], &options);
                        packed(&device, axis, shape, 4, &[1], &options);
                    }
                }
                let serial = CudaOptions { overlap: false, ..options };
                println!("without overlapping launches:");
                for axis in axes {
                    packed(&device, axis, SHAPES[0], 3, &[1], &serial);
                }
            }
        }
    }
}
