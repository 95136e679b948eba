//! Encoder rate in weights a second on one thread: two passes, T = 256, one scale a row of 4096.

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use trelliq_codec::{BlockEncoder, Code, Trellis};

fn encoder(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("encode");
    group.sample_size(10);
    let x: Vec<f32> = (0..4096u32).map(|i| ((i * 2_654_435_761) as i32 as f32) / 1.2e9).collect();
    for (state_bits, bits) in [(12, 1), (12, 2), (12, 3), (12, 4), (12, 5), (12, 8), (16, 3)] {
        let trellis = Trellis::new(Code::OneMad, state_bits, bits, 256).expect("legal");
        let encoder = BlockEncoder::new(trellis, 2).expect("two passes");
        let mut states = vec![0; x.len()];
        group.throughput(Throughput::Elements(x.len() as u64));
        let id = BenchmarkId::new(format!("1mad_L{state_bits}"), bits);
        group.bench_function(id, |b| b.iter(|| encoder.encode(&x, &mut states)));
    }
    group.finish();
}

criterion_group!(benches, encoder);
criterion_main!(benches);
