//! What commands print on standard output: aligned tables for people, JSON for programs.

use anyhow::Result;
use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use serde::Serialize;
use std::io::{BufWriter, Write};

/// A table whose columns are aligned with spaces; columns whose name starts with `<` are text and
/// aligned to the left, all others are numbers.
pub struct TextTable {
    table: Table,
}

impl TextTable {
    pub fn new(columns: &[&str]) -> Self {
        let mut table = Table::new();
        table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
        table.set_header(columns.iter().map(|name| name.trim_start_matches('<')));
        for (index, name) in columns.iter().enumerate() {
            let left = name.starts_with('<');
            let column = table.column_mut(index).expect("a column that the header made");
            let alignment = if left { CellAlignment::Left } else { CellAlignment::Right };
            column.set_cell_alignment(alignment);
            column.set_padding((0, 2));
        }
        Self { table }
    }

    pub fn row(&mut self, cells: Vec<String>) {
        self.table.add_row(cells);
    }

    pub fn print(&self) -> Result<()> {
        let mut out = BufWriter::new(std::io::stdout().lock());
        for line in self.table.to_string().lines() {
            writeln!(out, "{}", line.trim_end())?;
        }
        Ok(out.flush()?)
    }
}

/// One JSON object, on a line of its own.
pub fn print_json(object: &impl Serialize) -> Result<()> {
    let mut line = serde_json::to_vec(object)?;
    line.push(b'\n');
    Ok(std::io::stdout().lock().write_all(&line)?)
}
