//! Files of pictures: SVG as it is drawn, or PNG made of it.

use std::path::Path;

use resvg::tiny_skia::{Pixmap, Transform};
use resvg::usvg::{Options, Tree};
use stdchk::{Error, Result};

/// Pixels of a PNG for each unit of the drawing: sharp also on dense screens.
const SCALE: f32 = 2.0;

#[derive(Clone, Copy)]
enum Format {
    Svg,
    Png,
}

fn format_of(path: &Path) -> Option<Format> {
    let end = path.extension()?.to_str()?;
    let formats = [("svg", Format::Svg), ("png", Format::Png)];
    formats.into_iter().find(|(known, _)| end.eq_ignore_ascii_case(known)).map(|(_, format)| format)
}

/// A name says in which format it is meant.
fn format(path: &Path) -> Result<Format> {
    format_of(path).ok_or_else(|| {
        let name = path.display();
        Error::invalid(format!(
            "{name}: charts are drawn as SVG or PNG; give a name that ends in .svg or .png"
        ))
    })
}

/// Fails for a name of which the format is not known, before any work is done.
pub fn check_name(path: &Path) -> Result<()> {
    format(path).map(drop)
}

/// Writes a drawing in the format that the name says.
pub fn write(path: &Path, svg: &str) -> Result<()> {
    let bytes = match format(path)? {
        Format::Svg => svg.as_bytes().to_vec(),
        Format::Png => png(svg)?,
    };
    std::fs::write(path, bytes).map_err(|error| Error::io(format!("cannot write {}", path.display()), error))
}

/// Draws with a font of its own, so that it looks the same wherever it is made.
fn png(svg: &str) -> Result<Vec<u8>> {
    let failed = |what: &dyn std::fmt::Display| Error::invalid(format!("the chart cannot be drawn: {what}"));
    let mut options = Options::default();
    let fonts = options.fontdb_mut();
    fonts.load_font_data(epaint_default_fonts::UBUNTU_LIGHT.to_vec());
    let family = fonts.faces().next().and_then(|face| face.families.first()).map(|(name, _)| name.clone());
    fonts.set_sans_serif_family(family.ok_or_else(|| failed(&"there is no font"))?);
    let tree = Tree::from_str(svg, &options).map_err(|error| failed(&error))?;
    let size = tree.size().to_int_size().scale_by(SCALE).ok_or_else(|| failed(&"it is too large"))?;
    let mut pixels = Pixmap::new(size.width(), size.height()).ok_or_else(|| failed(&"it is too large"))?;
    resvg::render(&tree, Transform::from_scale(SCALE, SCALE), &mut pixels.as_mut());
    pixels.encode_png().map_err(|error| failed(&error))
}
