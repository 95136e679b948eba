//! Quantizing and running a model from a program of one's own:
//! `cargo run --release -p trelliq --example embed -- MODEL OUT`.

use std::ops::ControlFlow;
use trelliq_format::ModelSource;
use trelliq_model::{GenerateOptions, LoadOptions, Model, RuntimeOptions, Tokenizer, generate};
use trelliq_quantize::{QuantizeOptions, quantize};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let (Some(model), Some(out)) = (args.next(), args.next()) else {
        return Err("usage: embed MODEL OUT".into());
    };

    let source = ModelSource::open(&model)?;
    let options = QuantizeOptions { bits: 3, ..QuantizeOptions::default() };
    quantize(&source, out.as_ref(), &options, &|_event| {})?;

    let packed = ModelSource::open(&out)?;
    let model = Model::load(&packed, &LoadOptions::default())?;
    let tokenizer = Tokenizer::from_files(packed.sidecar_files(), packed.config())?;
    let prompt = tokenizer.encode("Once upon a time", true)?;
    generate(
        &model,
        &tokenizer,
        &mut model.new_cache(),
        &prompt,
        &GenerateOptions::default(),
        &RuntimeOptions::default(),
        &mut |token| {
            print!("{}", token.text);
            ControlFlow::Continue(())
        },
    )?;
    Ok(())
}
