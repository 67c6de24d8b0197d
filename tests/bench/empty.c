// SPDX-License-Identifier: Apache-2.0
// What a static program costs that does nothing: what the start-up of an executable is compared with.

int main(void)
{
    return 0;
}
