/** Bytes from base64 digits, by the browser's own decoder where it has one. */

type Decoder = { fromBase64?: (digits: string) => Uint8Array<ArrayBuffer> };

export function bytesFromBase64(digits: string): Uint8Array<ArrayBuffer> {
  const decoder = Uint8Array as unknown as Decoder;
  if (decoder.fromBase64) return decoder.fromBase64(digits);
  const text = atob(digits);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  return bytes;
}
