/** How the height of a row is divided among its lanes: actions, kernels, another run, transfers and host. */

export interface Bands {
  mainHeight: number;
  /** Tops are relative to the top of the row; a height of 0: there is no such lane. */
  kernelTop: number;
  kernelHeight: number;
  ghostTop: number;
  ghostHeight: number;
  thinTop: number;
  thinHeight: number;
}

export interface Lanes {
  thin: boolean;
  ghost: boolean;
  kernels: boolean;
}

const THIN_FRACTION = 0.24;
const GHOST_FRACTION = 0.36;
const KERNEL_FRACTION = 0.38;
/** Lower rows have the lane of actions alone. */
const LEAST_DIVIDED_HEIGHT = 8;
const LEAST_KERNEL_HEIGHT = 16;

/** Return the lanes of a row of a height: the lane of kernels is right below that of the actions. */
export function divideRow(height: number, lanes: Lanes): Bands {
  const isDivided = height >= LEAST_DIVIDED_HEIGHT;
  const thin = lanes.thin && isDivided ? height * THIN_FRACTION : 0;
  const ghost = lanes.ghost && isDivided ? height * GHOST_FRACTION : 0;
  const kernels = lanes.kernels && height >= LEAST_KERNEL_HEIGHT ? height * KERNEL_FRACTION : 0;
  const below = (part: number): number => (part ? part + 1 : 0);
  return {
    mainHeight: height - below(thin) - below(ghost) - below(kernels),
    kernelTop: height - kernels - below(thin) - below(ghost),
    kernelHeight: kernels,
    ghostTop: height - ghost - below(thin),
    ghostHeight: ghost,
    thinTop: height - thin,
    thinHeight: thin,
  };
}

/** Whether kernels can be seen: a typical one is at least a pixel wide. */
export function showsKernels(typical: number, nsPerPixel: number): boolean {
  return typical > 0 && nsPerPixel <= typical;
}
