/** Pixel lines of the visible rows: painted as numbers, put on the canvas at once, stretched to the rows' heights. */

export class Strips {
  private readonly canvas = document.createElement("canvas");
  private image: ImageData | null = null;
  lines = new Uint32Array(0);

  /** Make `count` empty lines of `width` pixels. */
  begin(width: number, count: number): void {
    const height = Math.max(count, 1);
    if (!this.image || this.image.width !== width || this.image.height < height) {
      this.canvas.width = width;
      this.canvas.height = height;
      this.image = new ImageData(width, height);
      this.lines = new Uint32Array(this.image.data.buffer);
    } else this.lines.fill(0, 0, width * height);
    this.count = height;
  }
  private count = 0;

  end(): void {
    const image = this.image!;
    this.canvas.getContext("2d")!.putImageData(image, 0, 0, 0, 0, image.width, this.count);
  }

  /** Draw `count` lines, together `height` high; all in device pixels. */
  draw(pen: CanvasRenderingContext2D, line: number, count: number, top: number, height: number): void {
    const { width } = this.image!;
    pen.drawImage(this.canvas, 0, line, width, count, 0, top, width, height);
  }
}
